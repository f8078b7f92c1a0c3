"""What `bench WHAT --help` prints, without anything installed. Owns the texts; the options are the benchmarks' own."""

from collections.abc import Sequence
from typing import Final

_SPEED: Final = """\
  --model MODEL         a name that `soloist models` lists (smollm2-135m)
  --llama-bench PATH    llama.cpp's llama-bench program, to compare with
  --rounds N            measured rounds (5)
  --prefill-tokens N    tokens of the prompt (512)
  --decode-depth N      tokens before the first generated one (64)
  --decode-tokens N     tokens to generate (64)
  --threads N           threads of the engine (all usable cores)
  --json                one JSON object on stdout
"""
_CODEC: Final = """\
  --model-folder DIR    holds a .gguf file (the fetched smollm2-135m)
  --formats NAME [NAME ...]  KV formats to measure (all)
  --windows N           windows of text, 1 to 8 (8)
  --weights             also compare lattice weights on keys
  --threads N           threads of torch (1)
  --json                print JSON instead of a table
"""
_GATEWAY: Final = """\
  --model MODEL         model folder for tokenizer and template (smollm2-135m)
  --prompt-tokens N     tokens of the prompt (1024)
  --reply-tokens N      tokens of the reply (32)
  --requests N          measured requests (500)
  --warmups N           requests before them (50)
  --engine-command CMD  starts an engine on ENGINE_PORT (the repository's scripted one)
  --json                one JSON object on stdout
"""
_TEXTS: Final[dict[str, tuple[str, str]]] = {
    "decode": ("Tokens a second, prompt and reply, beside peers on the same file.", _SPEED),
    "prefill": ("Tokens a second of the prompt alone, beside peers on the same file.", _SPEED),
    "codec": ("Size and error of the KV formats on a real model's keys and values.", _CODEC),
    "gateway": ("Latency that the gateway adds, against a scripted engine.", _GATEWAY),
}
BENCHMARKS: Final = tuple(_TEXTS)


def describe_benchmark(name: str) -> str:
    """The help of one of BENCHMARKS."""
    summary, options = _TEXTS[name]
    return (
        f"usage: soloist bench {name} [OPTION ...]\n\n{summary}\n\noptions:\n{options}  -h, --help            this text"
    )


def asks_help(arguments: Sequence[str]) -> bool:
    """Whether the arguments of a benchmark ask for its help."""
    return "-h" in arguments or "--help" in arguments
