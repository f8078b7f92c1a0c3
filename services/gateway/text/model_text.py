"""The text side of one model folder: manifest, tokenizer and template, loaded and checked as one. Owns reading them.

Receives a folder that the engine's fetch wrote; hands on everything the gateway knows of a model's text. Never reads
weights.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from contracts import codec
from contracts.errors import InvalidRequest, SetupError
from contracts.model_folder import FORMAT_VERSION, MANIFEST_NAME, TEMPLATE_NAME, TOKENIZER_NAME, ModelManifest
from gateway.text.prompt import PromptEncoder
from gateway.text.template import ChatTemplate
from gateway.text.tokenizer import TextTokenizer


@dataclass(frozen=True, slots=True)
class ModelText:
    """Manifest, tokenizer and prompt encoder of one model."""

    manifest: ModelManifest
    tokenizer: TextTokenizer
    prompt: PromptEncoder


class ModelMissing(SetupError):
    """The model folder is not there (yet): whoever fetches it may still be at work."""

    code = "model_missing"


def load_model_text(home: Path, name: str) -> ModelText:
    """Read and check the folder of a model. Blocks for up to a second on large tokenizers.

    Raises: ModelMissing when there is no folder, SetupError when it is broken or of another format.
    """
    folder = home / "models" / name
    if not (folder / MANIFEST_NAME).is_file():
        raise ModelMissing(f"model {name} is not in {folder.parent}; run: ./soloist fetch {name}")
    manifest = _read_manifest(folder)
    tokenizer = TextTokenizer(_read_file(folder, TOKENIZER_NAME, manifest))
    source = _read_file(folder, TEMPLATE_NAME, manifest).decode()
    template = ChatTemplate(source, bos_token=manifest.bos_token, eos_token=manifest.eos_token)
    return ModelText(manifest, tokenizer, PromptEncoder(template, tokenizer))


def _read_manifest(folder: Path) -> ModelManifest:
    try:
        manifest = codec.decode_manifest((folder / MANIFEST_NAME).read_bytes())
    except (OSError, InvalidRequest) as error:
        raise SetupError(f"{folder / MANIFEST_NAME}: {error}; fetch the model again") from error
    if manifest.format_version != FORMAT_VERSION:
        raise SetupError(
            f"{folder} has format {manifest.format_version}, this version reads {FORMAT_VERSION}; fetch the model again"
        )
    return manifest


def _read_file(folder: Path, name: str, manifest: ModelManifest) -> bytes:
    try:
        content = (folder / name).read_bytes()
        entry = manifest.files[name]
    except (OSError, KeyError) as error:
        raise SetupError(f"{folder / name} is missing; fetch the model again") from error
    digest = hashlib.sha256(content).hexdigest()
    if digest != entry.sha256:
        raise SetupError(f"{folder / name} has SHA-256 {digest}, expected {entry.sha256}; fetch the model again")
    return content
