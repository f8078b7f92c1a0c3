"""Training text of the tiny hybrid model: sources on this Python installation, split by whole files, and the tokenizer.

Owns the list of sources, the held-out rule, the special tokens and the byte-level BPE. Receives nothing but the
installation; hands on documents (name, text) and a tokenizer. Does NOT make dialogues and does NOT train the network.
"""

import ast
import hashlib
import importlib.metadata
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from pydoc_data import topics

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

BASE_VOCABULARY = 2016  # the matrix has 2,048 rows: 26 specials follow, 6 rows stay without a token, as in the family
MATRIX_ROWS = 2048

# The family's order from <|endoftext|> on. Decoders that skip special tokens keep those from <tool_call> on.
CONTROL_TOKENS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
]
TEXT_TOKENS = [
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
]

# Letters take their marks along, digits stand alone, a symbol run may take one space before it and line ends after it.
_PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
    r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+",
    r"\p{N}",
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
)

# Folders of the standard library that are tests, tables of numbers or vendored copies.
_SKIPPED_FOLDERS = frozenset(
    [
        "test",
        "tests",
        "idlelib",
        "lib2to3",
        "encodings",
        "site-packages",
        "ensurepip",
        "turtledemo",
        "pydoc_data",
        "__pycache__",
        "_vendor",
    ]
)
# Distribution -> import folder; every one carries an MIT, BSD, Apache or PSF licence (see the README).
PACKAGES = {
    "aiohttp": "aiohttp",
    "anyio": "anyio",
    "attrs": "attr",
    "click": "click",
    "fastapi": "fastapi",
    "fsspec": "fsspec",
    "httpx": "httpx",
    "huggingface_hub": "huggingface_hub",
    "Jinja2": "jinja2",
    "jsonschema": "jsonschema",
    "networkx": "networkx",
    "packaging": "packaging",
    "redis": "redis",
    "requests": "requests",
    "rich": "rich",
    "starlette": "starlette",
    "typer": "typer",
    "urllib3": "urllib3",
    "uvicorn": "uvicorn",
}
_MAX_FILE_CHARS = 150_000


@dataclass(frozen=True, slots=True)
class Document:
    """One file or one documentation topic."""

    name: str
    text: str

    @property
    def held_out(self) -> bool:
        """One file in twenty, by the digest of its name, is never trained on."""
        return hashlib.sha256(self.name.encode()).digest()[0] % 20 == 0


def read_documents() -> list[Document]:
    """All documents in a fixed order: the standard library, its topics, then the packages."""
    found = list(_python_files(Path(sysconfig.get_path("stdlib")), "python"))
    found += [Document(f"topics/{name}", text) for name, text in sorted(topics.topics.items())]
    for _, folder in sorted(PACKAGES.items()):
        found += _python_files(Path(sysconfig.get_path("purelib")) / folder, folder)
    return found


def describe_sources(documents: list[Document]) -> str:
    """Markdown table of what was read: source, version, licence, files, bytes."""
    lines = ["| source | version | licence | files | bytes |", "|---|---|---|---:|---:|"]
    rows = [("Python standard library", "python", sysconfig.get_python_version(), "PSF-2.0")]
    rows += [("Python documentation topics", "topics", sysconfig.get_python_version(), "PSF-2.0")]
    for distribution, folder in sorted(PACKAGES.items()):
        meta = importlib.metadata.metadata(distribution).json
        classifiers = [c.rsplit(" :: ", 1)[1] for c in meta.get("classifier", []) if c.startswith("License ::")]
        licence = str(meta.get("license_expression") or ", ".join(classifiers) or meta.get("license", ""))
        rows.append((distribution, folder, str(meta["version"]), licence[:60]))
    for title, prefix, version, licence in rows:
        texts = [d.text for d in documents if d.name.split("/")[0] == prefix]
        lines.append(f"| {title} | {version} | {licence} | {len(texts)} | {sum(len(t.encode()) for t in texts):,} |")
    return "\n".join(lines)


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """Byte-level BPE without special tokens, in the family's form (NFC, marks with letters, single digits)."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex("|".join(_PIECES)), behavior="isolated", invert=False)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=BASE_VOCABULARY,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != BASE_VOCABULARY:
        raise ValueError(f"the text gave {tokenizer.get_vocab_size()} tokens, {BASE_VOCABULARY} are needed")
    return tokenizer


def add_special_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """The same tokenizer with the 26 special tokens after the base vocabulary."""
    full = Tokenizer.from_str(tokenizer.to_str())
    full.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in CONTROL_TOKENS])
    full.add_tokens([AddedToken(t, special=False, normalized=False) for t in TEXT_TOKENS])
    return full


def _python_files(root: Path, label: str) -> Iterator[Document]:
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if _SKIPPED_FOLDERS & set(relative.parts[:-1]):
            continue
        text = path.read_text(encoding="utf-8", errors="replace").replace("\r\n", "\n")
        if not 200 <= len(text) <= _MAX_FILE_CHARS or "\ufffd" in text or not _parses(text):
            continue
        yield Document(f"{label}/{relative.as_posix()}", text)


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    return True
