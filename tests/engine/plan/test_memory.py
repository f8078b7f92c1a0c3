"""`plan memory`: the bars, what the plan contains, ways that really fit, refusals, and that nothing heavy is loaded."""

import itertools
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.errors import SetupError
from engine.plan.card import cards
from engine.plan.report import MemoryDocument
from engine.plan.table import render
from engine.plan.ways import CONTEXT_STEP, MAX_WAYS
from support.planning import GIB, plan, section_bytes

SERVICES = Path(__file__).resolve().parents[3] / "services"
VISION_BYTES = round(1.3 * GIB)
BIG = ("--model", "qwen3.8-27b")
ON_CARD = (*BIG, "--gpu", "rtx4090")
FULL = (*ON_CARD, "--context", "262144", "--drafts", "3", "--recipe", "balanced")
KNOWN_REGIONS = {"weights", "kv", "mtp_kv", "state", "staging", "replay", "workspace"}
CPU_S_MAX = 1.0


def run(*arguments: str, home: str = "/nonexistent") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "engine.plan", *arguments],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(SERVICES), "SOLOIST_HOME": home},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_27b_fits_a_24_gb_card_beside_a_vision_process() -> None:
    report = plan(*FULL, "--kv", "rk4v4-e8")
    assert report.fits and report.left_bytes >= 1.3 * GIB
    assert plan(*FULL, "--kv", "rk4v4-e8", "--vision-bytes", str(VISION_BYTES)).fits
    assert plan(*FULL) == report, "rk4v4-e8 is the model's own format"


def test_int8_beside_a_vision_process_is_refused_with_the_deficit() -> None:
    roomy = plan(*FULL, "--kv", "int8", "--gpu", "rtx5090")
    report = plan(*FULL, "--kv", "int8", "--vision-bytes", str(VISION_BYTES))
    assert not report.fits and roomy.fits
    assert report.deficit_bytes == report.total_bytes - report.usable_bytes == -report.left_bytes > 3 * GIB
    assert report.total_bytes == roomy.total_bytes
    names = [[option.split()[0] for option in way.options] for way in report.ways]
    assert names == [["--kv"], ["--context"], ["--recipe", "--context"]] and len(names) == MAX_WAYS
    assert report.ways[0].options == ["--kv rk4v4-e8"]


def test_the_plan_adds_up_and_contains_everything() -> None:
    report = plan(*FULL, "--vision-bytes", "1000000")
    assert sum(region.bytes for region in report.regions) == report.total_bytes
    assert report.usable_bytes == report.device.total_bytes - sum(line.bytes for line in report.reserves)
    assert report.left_bytes == report.usable_bytes - report.total_bytes
    assert {region.name.partition(".")[0] for region in report.regions} == KNOWN_REGIONS
    names = {region.name for region in report.regions}
    kinds = ("embedding", "head", "attention", "delta", "mlp", "mtp", "vectors")
    assert {f"weights.{kind}" for kind in kinds} | {"workspace.logits", "replay.u"} <= names
    assert section_bytes(report, "staging") == section_bytes(report, "state")
    assert [line.basis for line in report.reserves] == ["published", "given"]
    assert all(line.source for line in report.reserves)


def test_drafts_pay_for_logits_replay_and_the_heads_cache() -> None:
    none, three, four = (plan(*ON_CARD, "--drafts", str(k)) for k in (0, 3, 4))
    assert section_bytes(none, "mtp_kv") == 0 < section_bytes(three, "mtp_kv")
    assert section_bytes(none, "replay") * 4 == section_bytes(three, "replay")
    rows = {report.choice.drafts: dict(_regions(report))["workspace.logits"] for report in (none, three, four)}
    assert rows[3] == 4 * rows[0] and rows[4] == 5 * rows[0] == 5 * 4 * 248_320


def test_an_embedding_in_host_memory_leaves_the_card_by_its_exact_bytes() -> None:
    device, host = plan(*ON_CARD), plan(*ON_CARD, "--embedding", "host")
    embedding_bytes = dict(_regions(device))["weights.embedding"]
    assert host.host_bytes == embedding_bytes == device.total_bytes - host.total_bytes
    assert [(region.name, region.bytes) for region in host.host_regions] == [("weights.embedding", embedding_bytes)]
    assert "weights.embedding" not in dict(_regions(host))


def test_a_plan_of_what_this_version_cannot_run_says_so() -> None:
    assert "this version's engine runs the reference executor" in plan(*ON_CARD).notes[0]
    assert "note: the packed executor" in render(plan(*ON_CARD))
    small = ("--model", "smollm2-135m", "--recipe", "balanced", "--gpu", "rtx4090", "--executor", "reference")
    report = plan(*small)
    assert not report.notes and section_bytes(report, "expanded") > 0


def test_recipes_and_formats_order_by_bytes() -> None:
    recipes = [plan(*ON_CARD, "--recipe", name).total_bytes for name in ("compact", "balanced", "exact")]
    formats = [plan(*ON_CARD, "--kv", name).total_bytes for name in ("rk4v4-e8", "int8", "bf16", "fp32")]
    assert recipes == sorted(set(recipes)) and formats == sorted(set(formats))


@settings(max_examples=40)
@given(
    model=st.sampled_from(["qwen3.8-27b", "qwen3.5-9b", "qwen3.5-0.8b", "tiny-hybrid"]),
    device_gib=st.floats(0.5, 40.0),
    kv=st.sampled_from(["bf16", "int8", "rk4v4-e8"]),
    recipe=st.sampled_from(["exact", "balanced", "compact"]),
    context=st.integers(64, 262_144),
    drafts=st.integers(0, 5),
)
def test_every_way_fits_and_gives_up_no_more_than_it_must(
    model: str, device_gib: float, kv: str, recipe: str, context: int, drafts: int
) -> None:
    device = ("--device-bytes", str(int(device_gib * GIB)))
    wish = {"--kv": kv, "--recipe": recipe, "--context": str(context), "--drafts": str(drafts)}
    report = plan("--model", model, *device, *itertools.chain(*wish.items()))
    assert report.fits == (report.left_bytes >= 0) == (report.deficit_bytes == 0)
    if report.fits:
        assert not report.ways and report.smallest_bytes is None
        return
    assert bool(report.ways) != (report.smallest_bytes is not None)
    assert len({tuple(way.options) for way in report.ways}) == len(report.ways) <= MAX_WAYS
    assert [len(way.options) for way in report.ways] == sorted(len(way.options) for way in report.ways)
    for way in report.ways:
        changed = wish | dict(option.split() for option in way.options)
        answer = plan("--model", model, *device, *itertools.chain(*changed.items()))
        assert answer.fits and answer.left_bytes == way.left_bytes
        assert report.total_bytes - answer.total_bytes == way.saved_bytes >= report.deficit_bytes
        if changed["--context"] != wish["--context"]:
            longer = changed | {"--context": str(int(changed["--context"]) + CONTEXT_STEP)}
            if int(longer["--context"]) < context:
                assert not plan("--model", model, *device, *itertools.chain(*longer.items())).fits


def test_no_way_changes_more_than_another_for_no_longer_a_window() -> None:
    """One byte too much in a window that is not cut: two single changes fit, and so would both together."""
    wish = (*BIG, "--recipe", "balanced", "--context", "4096", "--reserve-bytes", "0")
    whole = plan(*wish, "--device-bytes", str(40 * GIB)).total_bytes
    report = plan(*wish, "--device-bytes", str(whole - 1))
    assert [way.options for way in report.ways] == [["--embedding host"], ["--recipe compact"]], "the cheaper one first"


def test_nothing_fits_says_what_the_least_is_and_which_cards_do() -> None:
    report = plan(*BIG, "--device-bytes", str(8 * GIB))
    assert not report.ways and report.smallest_bytes is not None
    assert report.usable_bytes < report.smallest_bytes < report.total_bytes
    assert "rtx4090" in report.cards and "b200" in report.cards
    assert f"the smallest takes {report.smallest_bytes:,} bytes" in render(report)


def test_cards_named_in_a_refusal_do_hold_the_plan() -> None:
    arguments = (*BIG, "--kv", "bf16", "--vision-bytes", str(11 * GIB))  # with it too much for an L40S
    report = plan(*arguments, "--gpu", "rtx4090")
    for card in cards():
        assert plan(*arguments, "--gpu", card.name).fits == (card.name in report.cards), card.name


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--gpu", "rtx9999"), ("'rtx9999'", "rtx4090", "h200")),
        (("--model", "gpt-9", "--gpu", "l4"), ("'gpt-9'", "qwen3.8-27b", "smollm2-135m")),
        ((*ON_CARD, "--kv", "int3"), ("--kv", "'int3'", "rk4v4-e8", "bf16")),
        ((*ON_CARD, "--context", "262145"), ("--context", "262145", "262144")),
        ((*ON_CARD, "--context", "63"), ("--context", "63", "64")),
        ((*ON_CARD, "--drafts", "6"), ("--drafts", "6", "0 to 5")),
        ((*ON_CARD, "--drafts", "-1"), ("--drafts", "-1", "0 to 5")),
        ((*ON_CARD, "--embedding", "disk"), ("--embedding", "'disk'", "device, host")),
        ((*ON_CARD, "--recipe", "tiny"), ("--recipe", "'tiny'", "balanced", "compact")),
        ((*ON_CARD, "--chunk-tokens", "100"), ("--chunk-tokens", "100", "multiple of 64")),
        ((*ON_CARD, "--vision-bytes", "-1"), ("--vision-bytes", "-1")),
        ((*ON_CARD, "--reserve-bytes", "-5"), ("--reserve-bytes", "-5")),
        ((*BIG, "--device-bytes", "0"), ("--device-bytes", "0")),
        ((*ON_CARD, "--executor", "fast"), ("--executor", "'fast'", "packed, reference")),
        (("--model", "qwen3.5-4b", "--gpu", "l4", "--embedding", "host"), ("qwen3.5-4b", "head")),
        ((*BIG, "--embedding", "host", "--recipe", "compact"), ("--embedding host", "reference")),
        (("--model", "smollm2-135m", "--gpu", "l4"), ("smollm2-135m", "./soloist fetch smollm2-135m", "--recipe")),
    ],
)
def test_bad_values_are_named_with_the_choices(arguments: tuple[str, ...], named: tuple[str, ...]) -> None:
    if "--model" not in arguments:
        arguments = (*BIG, *arguments)
    with pytest.raises(SetupError) as caught:
        plan(*arguments)
    missing = [text for text in named if text not in caught.value.message]
    assert not missing, caught.value.message
    assert "\n" not in caught.value.message


def test_the_process_answers_in_json_or_as_a_table_with_its_exit_codes() -> None:
    fits = run(*FULL, "--json")
    assert (fits.returncode, fits.stderr) == (0, "")
    document = json.loads(fits.stdout)
    assert document["fits"] is True and document["total_bytes"] == sum(r["bytes"] for r in document["regions"])
    refused = run("memory", *FULL, "--kv", "int8", "--vision-bytes", str(VISION_BYTES))
    assert (refused.returncode, refused.stderr) == (2, "")
    assert (
        "does not fit: " in refused.stdout and "--kv rk4v4-e8" in refused.stdout and "published [2]" in refused.stdout
    )
    wrong = run("--model", "nothing", "--json")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("plan: model 'nothing'") and wrong.stderr.count("\n") == 1
    conflict = run(*FULL, "--device-bytes", "5")
    assert conflict.returncode == 2 and conflict.stderr.count("\n") == 1 and "--device-bytes" in conflict.stderr


def test_an_answer_takes_under_a_second_and_no_torch() -> None:
    """Processor time, because the machine may be busy; the refused plan with its ways is the longest answer."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert run(*FULL, "--kv", "int8", "--vision-bytes", str(VISION_BYTES)).returncode == 2
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < CPU_S_MAX
    code = "import sys; from engine.plan.__main__ import main; main(sys.argv[1:]); sys.exit('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code, *FULL], env={"PYTHONPATH": str(SERVICES)}, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr


def _regions(report: MemoryDocument) -> list[tuple[str, int]]:
    return [(region.name, region.bytes) for region in report.regions]
