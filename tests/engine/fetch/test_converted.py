"""Models that fetch converts: the bundled one needs no network, the hub's are downloaded, completed, explained."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from contracts.errors import SetupError
from engine.fetch import converted, hub
from engine.fetch.install import ensure_model
from engine.model_home import open_folder
from engine.progress import ProgressLine
from engine.registry import HubSource, RegisteredModel, lookup
from engine.weights.checkpoint import open_weights
from support.bound_weights import bind
from support.conversion import convert_quietly
from support.hub_server import HubServer
from support.hybrid_checkpoint import TINY_HYBRID

SERVICES = Path(__file__).resolve().parents[3] / "services"
NAME = "tiny-hybrid"
REPOSITORY = "Someone/tiny-hybrid"
OFFLINE = {"HF_ENDPOINT": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}


def fetch(name: str, home: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": str(SERVICES), "SOLOIST_HOME": str(home), "OMP_NUM_THREADS": "1"} | variables
    command = [sys.executable, "-m", "engine.fetch", name]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)


def test_bundled_model_needs_no_network(tmp_path: Path) -> None:
    done = fetch(NAME, tmp_path, **OFFLINE)
    assert done.returncode == 0, done.stderr
    folder = open_folder(tmp_path, NAME)
    assert folder.manifest == convert_quietly(TINY_HYBRID, tmp_path / "other" / NAME, "exact").manifest
    weights, _ = bind(lookup(NAME).spec, open_weights(folder))
    assert weights.mtp is not None and weights.tied
    again = fetch(NAME, tmp_path, **OFFLINE)
    assert again.returncode == 0 and "converting" not in again.stderr
    (folder.path / "weights.json").write_text("{}", encoding="utf-8")
    mended = fetch(NAME, tmp_path, **OFFLINE)
    assert mended.returncode == 0 and f"fetching {NAME} again" in mended.stderr
    assert open_folder(tmp_path, NAME).manifest == folder.manifest
    assert sorted(os.listdir(tmp_path / "models")) == [f".{NAME}.lock", NAME]


def test_bundled_folder_is_beside_the_services() -> None:
    assert SERVICES.parent / "models" == converted.MODELS_FOLDER
    assert "COPY models/tiny-hybrid/ /models/tiny-hybrid/" in (SERVICES / "engine" / "Dockerfile").read_text()


def test_bundled_folder_that_is_away_is_one_line(tmp_path: Path) -> None:
    model = lookup(NAME)
    with pytest.raises(SetupError, match=f"{NAME} comes with the program in {tmp_path / NAME}, which is not there"):
        converted.convert_bundled(model, model.source, tmp_path / "out", ProgressLine(io.StringIO()), tmp_path)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["qwen3.8-27b", "qwen3.5-0.8b"])
def test_no_network_says_what_is_needed_in_one_line(tmp_path: Path, name: str) -> None:
    done = fetch(name, tmp_path, **OFFLINE)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    source = lookup(name).source
    assert isinstance(source, HubSource)
    assert last.startswith(
        f"soloist: no network: the checkpoint {source.repository} on the Hugging Face hub could not be reached"
    )
    assert f"a download of {source.download_bytes / 1e9:.1f} GB" in last and "./soloist convert FOLDER --out" in last
    assert not (tmp_path / "models" / name).exists()


def test_offline_mode_is_no_network(tmp_path: Path) -> None:
    done = fetch("qwen3.5-0.8b", tmp_path, HF_HUB_OFFLINE="1")
    assert done.returncode == 1 and done.stderr.splitlines()[-1].startswith("soloist: no network: ")


@pytest.fixture
def server() -> Iterator[HubServer]:
    names = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "generation_config.json")
    files = {name: (TINY_HYBRID / name).read_bytes() for name in (*names, "chat_template.jinja")}
    files["README.md"] = b"not needed"
    with HubServer(REPOSITORY, files).serving() as serving:
        yield serving


@pytest.fixture
def model() -> RegisteredModel:
    """tiny-hybrid as if it came from the hub."""
    registered = lookup(NAME)
    source = HubSource(REPOSITORY, download_bytes=4_000_000, license="Apache-2.0")
    return RegisteredModel(
        registered.spec, source, registered.stop_token_ids, None, registered.eos_token_id,
        registered.default_sampling, "exact",
    )  # fmt: skip


def ensure(model: RegisteredModel, home: Path, environ: dict[str, str]) -> str:
    log = io.StringIO()
    ensure_model(model, home, os.environ | environ | {"PYTHONPATH": str(SERVICES)}, ProgressLine(log), verify=False)
    return log.getvalue()


def test_checkpoint_of_the_hub_is_downloaded_converted_and_removed(
    tmp_path: Path, model: RegisteredModel, server: HubServer
) -> None:
    log = ensure(model, tmp_path, server.environment)
    folder = open_folder(tmp_path, NAME)
    expected = convert_quietly(TINY_HYBRID, tmp_path / "other" / NAME, "exact").manifest
    assert folder.manifest.files["weights.bin"] == expected.files["weights.bin"]
    assert f"downloading {REPOSITORY}: 4.0 of 4.0 MB" in log and "converting" in log
    assert "README.md" not in server.served and server.served.count("model.safetensors") == 1
    assert sorted(os.listdir(tmp_path / "models")) == [f".{NAME}.lock", NAME]
    ensure(model, tmp_path, server.environment)
    assert server.served.count("model.safetensors") == 1, "a whole folder is kept"


def refusal(model: RegisteredModel, home: Path, environ: dict[str, str]) -> str:
    with pytest.raises(SetupError) as caught:
        ensure(model, home, environ)
    assert "\n" not in caught.value.message
    return caught.value.message


def test_repository_that_is_not_there_is_one_line(tmp_path: Path, model: RegisteredModel, server: HubServer) -> None:
    server.repository = "Someone/else"
    assert refusal(model, tmp_path, server.environment).startswith(f"cannot download {REPOSITORY}: ")


def test_checkpoint_of_another_architecture_is_refused(
    tmp_path: Path, model: RegisteredModel, server: HubServer
) -> None:
    server.files = dict(server.files) | {"config.json": json.dumps({"model_type": "qwen3_next"}).encode()}
    assert "architecture 'qwen3_next' is not supported" in refusal(model, tmp_path, server.environment)
    assert not (tmp_path / "models" / NAME).exists()


def test_space_for_download_and_artifact_is_checked_before(
    tmp_path: Path, model: RegisteredModel, server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1234))
    assert "1234 are free" in refusal(model, tmp_path, server.environment)
    assert server.served == []


INTERRUPTED = """
import os, signal, sys
from pathlib import Path
from engine.fetch.hub import download_checkpoint
from engine.progress import ProgressLine
from engine.registry import HubSource
def interrupt(*_): raise KeyboardInterrupt
signal.signal(signal.SIGTERM, interrupt)
source = HubSource(sys.argv[1], 4_000_000, "x")
try:
    download_checkpoint(source, Path(sys.argv[2]), dict(os.environ), ProgressLine(sys.stderr), 0)
except KeyboardInterrupt:
    sys.exit(7)
"""


def test_interrupted_download_ends_its_child_and_is_completed_later(
    tmp_path: Path, model: RegisteredModel, server: HubServer
) -> None:
    server.stall_after = 1_000_000
    models = tmp_path / "models"
    models.mkdir()
    folder = models / f".download-{NAME}"
    command = [sys.executable, "-c", INTERRUPTED, REPOSITORY, str(folder)]
    env = os.environ | {"PYTHONPATH": str(SERVICES)} | server.environment
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE) as child:
        assert server.stalled.wait(60)
        deadline_s = time.monotonic() + 60
        while not (folder / "config.json").exists() and time.monotonic() < deadline_s:
            time.sleep(0.02)  # files come side by side: the small one may be behind the one that stalls
        child.send_signal(signal.SIGTERM)
        child.communicate(timeout=30)
    assert child.returncode == 7
    assert (folder / "config.json").exists(), "what is there stays"
    server.stall_after = None
    server.closing.set()
    before = server.served.count("config.json")
    ensure(model, tmp_path, server.environment)
    assert server.served.count("config.json") == before, "and is not fetched again"
    assert not folder.exists()


def test_child_and_parent_agree_on_what_no_network_means() -> None:
    code = "import engine.fetch.hub_child as c, engine.fetch.hub as h; assert c.NO_NETWORK == h.NO_NETWORK"
    subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(SERVICES)}, check=True)
    assert hub.NO_NETWORK not in (0, 1, 2)
