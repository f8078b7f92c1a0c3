"""Make the tiny hybrid model: `train.py prepare`, `train.py train`, then `train.py evaluate` prints its figures.

Owns the command line, the token streams, the schedule and the loss. Uses corpus, dialogues, network, delta_rule and
measure from this folder and the reference library; needs the development packages. The engine never imports it.
"""

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jinja2.sandbox
import numpy as np
import torch
import torch.nn.functional as F
from corpus import MATRIX_ROWS, add_special_tokens, describe_sources, read_documents, train_tokenizer
from delta_rule import use_training_delta_rule
from dialogues import Dialogue, make_dialogues
from measure import WINDOW, measure_generated, measure_held_out
from network import HybridNetwork, init_weights, load_checkpoint, save_checkpoint, write_config
from tokenizers import Tokenizer
from torch import Tensor

FOLDER = Path(__file__).resolve().parent
_SEED = 20
_NUM_SMALL_DIALOGUES = 9000
_ROWS_OF_TEXT, _ROWS_OF_DIALOGUE = 3, 1
_SAVE_EVERY = 100
_STREAMS = ("text", "dialogue", "held_out")
_PROMPTS = (
    "def read(self, path):\n",
    "import os\nimport sys\n\n",
    "class Node:\n    ",
    "The following section describes the",
)


@dataclass(frozen=True, slots=True)
class _Plan:
    """How long and how fast to learn; the schedule is flat, then falls linearly to a fiftieth."""

    num_steps: int
    warmup_steps: int = 40
    flat_share: float = 0.45
    deep_drafts_from: float = 0.75
    muon_rate: float = 0.02
    adam_rate: float = 3e-3

    def factor(self, step: int) -> float:
        """Share of the full learning rate at a step."""
        flat = self.num_steps * self.flat_share
        fall = max(0.0, (step - flat) / (self.num_steps - flat))
        return min(1.0, (step + 1) / self.warmup_steps) * (1 - 0.98 * fall)


def main() -> int:
    """Command line. Returns the exit status: 1 when `evaluate` misses a bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("prepare", "train", "evaluate"))
    parser.add_argument("--work", type=Path, default=Path("build/tiny-hybrid"), help="token streams and training state")
    parser.add_argument("--steps", type=int, default=2800)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    options.work.mkdir(parents=True, exist_ok=True)
    if options.verb == "prepare":
        _prepare(options.work)
    elif options.verb == "train":
        _train(options.work, _Plan(options.steps))
    else:
        return _evaluate(options.work)
    return 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _prepare(work: Path) -> None:
    """Write tokenizer and configuration into this folder and the token streams into the work folder."""
    documents = read_documents()
    learned = [d for d in documents if not d.held_out]
    dialogues = list(make_dialogues(learned, _NUM_SMALL_DIALOGUES, _SEED))
    template = _template()
    rendered = [_render(template, dialogue) for dialogue in dialogues]
    plain = train_tokenizer([d.text for d in learned] + [text for text in rendered if "```" not in text])
    full = add_special_tokens(plain)
    full.save(str(FOLDER / "tokenizer.json"))
    ids = full.get_vocab()
    write_config(FOLDER, ids)
    _write_tokenizer_config()
    end = ids["<|endoftext|>"]
    streams = {
        "text": _join(plain, [d.text for d in learned], end),
        "dialogue": _join(full, rendered, end),
        "held_out": _join(plain, [d.text for d in documents if d.held_out], end),
    }
    for name, stream in streams.items():
        np.save(work / f"{name}.npy", stream)
    _say(describe_sources(documents))
    held = sum(d.held_out for d in documents)
    sizes = ", ".join(f"{name} {len(stream):,}" for name, stream in streams.items())
    _say(f"{len(documents)} documents, {held} held out; {len(dialogues)} dialogues; tokens: {sizes}")


def _template() -> jinja2.Template:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    environment.globals["raise_exception"] = _raise
    return environment.from_string((FOLDER / "chat_template.jinja").read_text(encoding="utf-8"))


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _render(template: jinja2.Template, dialogue: Dialogue) -> str:
    return template.render(messages=dialogue.messages, tools=dialogue.tools, enable_thinking=dialogue.thinking)


def _write_tokenizer_config() -> None:
    content: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "add_bos_token": False,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 262144,
    }
    (FOLDER / "tokenizer_config.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _join(tokenizer: Tokenizer, texts: list[str], end: int) -> np.ndarray:
    """All texts in a shuffled order, each with an end token behind it. Shapes: [T] uint16."""
    order = np.random.default_rng(_SEED).permutation(len(texts))
    encoded = tokenizer.encode_batch([texts[i] for i in order], add_special_tokens=False)
    return np.concatenate([np.array([*e.ids, end], dtype=np.uint16) for e in encoded])


def _load_streams(work: Path) -> dict[str, np.ndarray]:
    return {name: np.load(work / f"{name}.npy") for name in _STREAMS}


def _train(work: Path, plan: _Plan) -> None:
    """Train, saving the state every 100 steps; a second call with the same work folder goes on from there."""
    torch.manual_seed(_SEED)
    network = HybridNetwork()
    init_weights(network)
    _say(f"training delta rule differs from the library's by {use_training_delta_rule():.1e}")
    parts = [sum(p.numel() for p in part.parameters()) for part in (network, network.mtp)]
    _say(f"{parts[0]:,} parameters, {parts[1]:,} of them in the MTP head")
    optimizers = _optimizers(network, plan)
    state_path = work / "state.pt"
    first = 0
    if state_path.exists():
        saved = torch.load(state_path, weights_only=True)
        network.load_state_dict(saved["network"])
        for optimizer, content in zip(optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(content)
        first = saved["step"]
    streams = _load_streams(work)
    started = time.monotonic()
    for step in range(first, plan.num_steps):
        losses = _step(network, optimizers, _batch(streams, step), plan, step)
        if step % 20 == 0:
            rate = (step - first + 1) * 4 * WINDOW / (time.monotonic() - started)
            _say(f"step {step} main {losses[0]:.3f} drafts {losses[1:]} tokens/s {rate:.0f}")
        if (step + 1) % _SAVE_EVERY == 0 or step + 1 == plan.num_steps:
            content = {"network": network.state_dict(), "optimizers": [o.state_dict() for o in optimizers]}
            torch.save(content | {"step": step + 1}, work / "state.tmp")
            (work / "state.tmp").replace(state_path)
    save_checkpoint(network, FOLDER)


def _optimizers(network: HybridNetwork, plan: _Plan) -> list[torch.optim.Optimizer]:
    """Orthogonalised momentum for the large matrices, Adam for everything else."""
    matrices: list[Tensor] = []
    others: list[Tensor] = []
    for name, parameter in network.named_parameters():
        large = parameter.ndim == 2 and min(parameter.shape) >= 64 and "embed_tokens" not in name
        (matrices if large else others).append(parameter)
    muon = torch.optim.Muon(matrices, lr=plan.muon_rate, momentum=0.95, weight_decay=0.01)
    adam = torch.optim.AdamW(others, lr=plan.adam_rate, betas=(0.9, 0.98), weight_decay=0.0)
    return [muon, adam]


def _batch(streams: dict[str, np.ndarray], step: int) -> Tensor:
    """Random windows, the same for the same step. Shapes: [4, WINDOW] int64."""
    draw = np.random.default_rng((_SEED, step))
    names = ["text"] * _ROWS_OF_TEXT + ["dialogue"] * _ROWS_OF_DIALOGUE
    starts = [int(draw.integers(0, len(streams[name]) - WINDOW)) for name in names]
    rows = [streams[name][start : start + WINDOW] for name, start in zip(names, starts, strict=True)]
    return torch.from_numpy(np.stack(rows).astype(np.int64))


def _step(
    network: HybridNetwork, optimizers: list[torch.optim.Optimizer], ids: Tensor, plan: _Plan, step: int
) -> list[float]:
    for optimizer, rate in zip(optimizers, (plan.muon_rate, plan.adam_rate), strict=True):
        for group in optimizer.param_groups:
            group["lr"] = rate * plan.factor(step)
    num_drafts = 3 if step >= plan.deep_drafts_from * plan.num_steps else 1
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = _losses(network, ids, num_drafts)
    weights = (1.0, 0.3, 0.15, 0.1)
    torch.autograd.backward([weight * loss for weight, loss in zip(weights, losses, strict=False)])
    torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return [round(float(loss), 3) for loss in losses]


def _losses(network: HybridNetwork, ids: Tensor, num_drafts: int) -> list[Tensor]:
    """Next-token loss, then for every draft step the cross-entropy against the decoder's own distribution."""
    hidden = network.hidden(ids)
    logits = network.logits(hidden).float()
    losses = [F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())]
    target = logits.detach().softmax(-1)
    for index, state in enumerate(network.drafts(hidden, ids, num_drafts)):
        draft = network.logits(state).float()
        wanted = target[:, index + 1 : index + 1 + draft.shape[1]]
        losses.append(F.cross_entropy(draft.flatten(0, 1), wanted.flatten(0, 1)))
    return losses


def _evaluate(work: Path) -> int:
    """Print the figures of the checkpoint in this folder as JSON."""
    network = load_checkpoint(FOLDER)
    streams = _load_streams(work)
    counts = torch.from_numpy(np.bincount(streams["text"], minlength=MATRIX_ROWS))
    held = streams["held_out"].astype(np.int64)
    rows = torch.from_numpy(held[: len(held) // WINDOW * WINDOW].reshape(-1, WINDOW))[::6]
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    encoded = [tokenizer.encode(prompt).ids[:8] for prompt in _PROMPTS]
    shortest = min(len(ids) for ids in encoded)
    prompts = torch.tensor([ids[:shortest] for ids in encoded])
    text = measure_held_out(network, rows, counts)
    written = [measure_generated(network, prompts, 512, temperature) for temperature in (0.0, 0.7, 1.0)]
    ratio = text.perplexity / text.unigram_perplexity
    bars = {
        "perplexity_of_unigram": {"value": ratio, "limit": 0.4, "ok": ratio <= 0.4},
        "acceptance": {"value": text.acceptance_greedy, "limit": 0.45, "ok": text.acceptance_greedy >= 0.45},
        "entropy_bits": {"value": written[-1].entropy_bits, "limit": 3.0, "ok": written[-1].entropy_bits >= 3.0},
    }
    report = {"held_out": asdict(text), "generated": [asdict(part) for part in written], "bars": bars}
    _say(json.dumps(report, indent=2))
    return 0 if all(bar["ok"] for bar in bars.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
