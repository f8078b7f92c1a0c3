"""A small but real model folder without weights: byte-level BPE trained in a moment, a ChatML template, a manifest.

Same kind of tokenizer as smollm2-135m (digits split, byte level, control tokens), so everything the gateway does with
text can be tested without a download. Owns the folder's files.
"""

import hashlib
import json
from pathlib import Path

import msgspec
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from contracts import codec
from contracts.generate import Sampling
from contracts.model_folder import (
    FORMAT_VERSION,
    MANIFEST_NAME,
    TEMPLATE_NAME,
    TOKENIZER_NAME,
    FileEntry,
    ModelManifest,
)

MODEL_NAME = "tiny-text"
CONTEXT_LIMIT = 4096
VOCAB_SIZE = 700
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
NOT_SPECIAL = ("<think>", "</think>")
DEFAULT_SYSTEM = "You are a test."
TEMPLATE = """\
{%- for message in messages %}
    {%- if loop.first and message.role != 'system' %}
        {{- '<|im_start|>system\\n' + default_system | default('You are a test.') + '<|im_end|>\\n' }}
    {%- endif %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
CORPUS = [
    "the quick brown fox jumps over the lazy dog and the other dogs",
    "def reverse(text): return text[::-1]  # a function that returns the string",
    "word words worded wording café naïve über 日本語 русский текст emoji 🌍",
    "system user assistant tool message content role im_start im_end",
]


def make_tokenizer() -> Tokenizer:
    """The same tokenizer on every call."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(NOT_SPECIAL),
        min_frequency=1,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 4, trainer)
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in NOT_SPECIAL])
    return tokenizer


def make_model_folder(home: Path, name: str = MODEL_NAME, context_limit: int = CONTEXT_LIMIT) -> Path:
    """Write the folder <home>/models/<name> and return it."""
    folder = home / "models" / name
    folder.mkdir(parents=True)
    tokenizer = make_tokenizer()
    content = json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False).encode()
    (folder / TOKENIZER_NAME).write_bytes(content)
    (folder / TEMPLATE_NAME).write_text(TEMPLATE, encoding="utf-8")
    manifest = ModelManifest(
        format_version=FORMAT_VERSION,
        name=name,
        family="scripted",
        context_limit=context_limit,
        vocab_size=tokenizer.get_vocab_size(),
        stop_token_ids=[SPECIAL.index("<|im_end|>")],
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        license="Apache-2.0",
        files={file: _entry(folder / file) for file in (TOKENIZER_NAME, TEMPLATE_NAME)},
        default_sampling=Sampling(temperature=0.5, top_p=0.9),
    )
    write_manifest(folder, manifest)
    return folder


def write_manifest(folder: Path, manifest: ModelManifest) -> None:
    """Replace the folder's manifest."""
    (folder / MANIFEST_NAME).write_bytes(msgspec.json.format(codec.encode(manifest)))


def _entry(path: Path) -> FileEntry:
    content = path.read_bytes()
    return FileEntry(len(content), hashlib.sha256(content).hexdigest())
