"""A model file through transformers in fp32: the independent implementation that logits are compared with."""

import warnings
from pathlib import Path

import torch


def load_reference(folder: Path) -> torch.nn.Module:
    """folder/weights.gguf, ready to be called."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AutoModelForCausalLM  # noqa: PLC0415 - seconds that only these tests should pay

        model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(
            folder, gguf_file="weights.gguf", dtype=torch.float32
        )
    return model.eval()
