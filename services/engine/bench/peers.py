"""The peers of the speed benchmark: transformers in fp32, and llama.cpp's own benchmark, both on the same file.

A peer is measured as its users run it, but for what only costs it time: transformers gets a bare loop of forward passes
with a cache, not its generate(). Owns how each is called; a peer that is not there says why.
"""

import contextlib
import importlib
import io
import subprocess
import time
import warnings
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from contracts.errors import SetupError
from engine.bench.contender import Absent, Work

_LLAMA_TIMEOUT_S = 600


class TransformersPeer:
    """AutoModelForCausalLM on the GGUF file, expanded to fp32 by transformers itself."""

    def __init__(self, weights_path: Path) -> None:
        """Raises: ImportError when transformers or what it needs for GGUF is not installed."""
        transformers: Any = importlib.import_module("transformers")  # an optional package
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):  # its progress bars
            warnings.simplefilter("ignore")
            self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(
                weights_path.parent, gguf_file=weights_path.name, dtype=torch.float32
            )
        self.version: str = transformers.__version__

    def prefill_tok_s(self, work: Work) -> float:
        """One forward pass, logits of the last position only."""
        started_s = time.perf_counter()
        self._forward(work.prefill_ids, None)
        return len(work.prefill_ids) / (time.perf_counter() - started_s)

    def decode_tok_s(self, work: Work) -> float:
        """Greedy steps behind a prefill, the first token not counted."""
        token_id, cache = self._forward(work.decode_ids, None)
        started_s = time.perf_counter()
        for _ in range(work.num_new_tokens - 1):
            token_id, cache = self._forward(np.array([token_id]), cache)
        return (work.num_new_tokens - 1) / (time.perf_counter() - started_s)

    @torch.inference_mode()
    def _forward(self, ids: NDArray[np.int64], cache: Any) -> tuple[int, Any]:
        result = self._model(torch.from_numpy(ids)[None], cache=cache, use_cache=True, logits_to_keep=1)
        return int(result.logits[0, -1].argmax()), result.cache


class LlamaCppPeer:
    """llama-bench, one repetition a round."""

    def __init__(self, program: Path, weights_path: Path, threads: int) -> None:
        self._command = [str(program), "-m", str(weights_path), "-t", str(threads), "-r", "1", "-o", "json"]

    def prefill_tok_s(self, work: Work) -> float:
        """A prompt of the same length; llama-bench chooses the ids."""
        return self._run("-p", len(work.prefill_ids), "-n", 0)

    def decode_tok_s(self, work: Work) -> float:
        """As many tokens behind a prompt of the same length."""
        return self._run("-p", 0, "-n", work.num_new_tokens, "-d", len(work.decode_ids))

    def _run(self, *arguments: str | int) -> float:
        command = [*self._command, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LLAMA_TIMEOUT_S)
        if done.returncode != 0:
            raise SetupError(f"{command[0]} ended with {done.returncode}: {done.stderr.strip()[-300:]}")
        rows = msgspec.json.decode(done.stdout)
        return float(rows[-1]["avg_ts"])


def open_transformers(weights_path: Path) -> TransformersPeer | Absent:
    """The peer, or why it is not there."""
    if weights_path.suffix != ".gguf":
        return Absent(f"{weights_path.name} is not a GGUF file")
    try:
        return TransformersPeer(weights_path)
    except ImportError as error:
        return Absent(f"not installed: {error}")


def open_llama_cpp(program: Path | None, weights_path: Path, threads: int) -> LlamaCppPeer | Absent:
    """The peer, or why it is not there.

    Raises: SetupError when the program that was named does not exist.
    """
    if program is None:
        return Absent("no --llama-bench PATH given")
    if not program.is_file():
        raise SetupError(f"--llama-bench {program}: no such file")
    return LlamaCppPeer(program, weights_path, threads)
