"""A reference model whose attention can be watched and fed: for the codec bench only. Owns loading, text and the hook.

The model is transformers' own (a development dependency), so the codec is judged without the engine's other parts.
Hands on logits, and calls back with the queries, keys and values of every attention layer, after RoPE.
"""

import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from contracts.errors import SetupError

# layer, q [T, Hq, D], k and v [T, Hkv, D], score scale -> the k and v to attend over
Rewrite = Callable[[int, Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]

WINDOW_TOKENS = 1024
EVALUATION_MODULES = (
    "argparse", "tarfile", "http/client", "asyncio/base_events",
    "statistics", "inspect", "email/message", "dataclasses",
)  # fmt: skip
CALIBRATION_MODULES = ("ast", "configparser", "subprocess", "shutil", "logging/__init__")
_SKIPPED_CHARACTERS = 2000  # licence headers and the like, which are not typical text
_CHARACTERS_PER_WINDOW = 12_000


def keep(layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Attend over the keys and values as they are."""
    del layer, q, scale
    return k, v


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Causal attention of one window.

    Shapes: q [T, Hq, D]; k, v [T, Hkv, D]; out [T, Hq, D].
    """
    share = q.shape[1] // k.shape[1]
    query, key, value = (x.transpose(0, 1) for x in (q, k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)))
    out = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale)
    return out.transpose(0, 1)


class AttentionProbe:
    """The attention function given to the model: rewrites keys and values, then attends over the result."""

    def __init__(self) -> None:
        self.rewrite: Rewrite = keep

    def __call__(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any
    ) -> tuple[Tensor, None]:
        """Called by the model, batch of one: [1, heads, T, D] in, [1, T, heads, D] out; the mask is always causal."""
        del attention_mask
        q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
        k, v = self.rewrite(module.layer_idx, q, k, v, options["scaling"])
        return attend(q, k, v, options["scaling"]).unsqueeze(0), None


@dataclass(frozen=True, slots=True)
class ProbedModel:
    """A causal model in fp32 on the CPU with its tokenizer and probe."""

    model: Any
    tokenizer: Any
    probe: AttentionProbe

    def logits(self, token_ids: Tensor, rewrite: Rewrite = keep) -> Tensor:
        """Logits [T, vocab] of one window [T], attention running over what rewrite returns."""
        self.probe.rewrite = rewrite
        logits: Tensor = self.model(token_ids.unsqueeze(0), use_cache=False).logits[0]
        return logits

    def windows(self, modules: tuple[str, ...]) -> list[Tensor]:
        """Token ids of WINDOW_TOKENS tokens from each named module of Python's standard library."""
        library = Path(sysconfig.get_paths()["stdlib"])
        return [self._window((library / f"{name}.py").read_text(encoding="utf-8")) for name in modules]

    def _window(self, text: str) -> Tensor:
        excerpt = text[_SKIPPED_CHARACTERS : _SKIPPED_CHARACTERS + _CHARACTERS_PER_WINDOW]
        token_ids: list[int] = self.tokenizer(excerpt).input_ids
        assert len(token_ids) >= WINDOW_TOKENS, f"{len(token_ids)} tokens in an excerpt of {len(excerpt)} characters"
        return torch.tensor(token_ids[:WINDOW_TOKENS])


def load_probed_model(folder: Path) -> ProbedModel:
    """Load the folder's model: its one .gguf file, or a checkpoint with config.json.

    Raises: SetupError when the folder holds neither.
    """
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    probe = AttentionProbe()
    AttentionInterface.register("kv_codec_probe", probe)
    gguf_names = sorted(path.name for path in folder.glob("*.gguf"))
    source = {"gguf_file": gguf_names[0]} if gguf_names else {}
    if not gguf_names and not (folder / "config.json").is_file():
        raise SetupError(f"{folder} holds neither a .gguf file nor config.json; run: ./soloist fetch smollm2-135m")
    model: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="kv_codec_probe", **source
    )
    return ProbedModel(model.eval(), AutoTokenizer.from_pretrained(folder, **source), probe)
