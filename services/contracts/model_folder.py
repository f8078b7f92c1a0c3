"""A model on disk as engine and gateway share it: one folder, one manifest. Owns names and shapes, reads no file.

    <SOLOIST_HOME>/models/<name>/manifest.json, tokenizer.json, chat_template.jinja, and
        weights.gguf, tensors.json    a downloaded file, kept as it is, and where each tensor lies in it (the file's own
                                      header takes seconds to parse, because vocabulary and merges sit in it), or
        weights.bin, weights.json     an artifact made by `convert`: bytes as the engine holds them, and what they are;
                                      kv_centres.safetensors beside it when the KV cache was calibrated

The engine's `fetch` and `convert` write the folder (to a temporary name, renamed when complete); the gateway reads
tokenizer and template from it. format_version changes whenever an old reader would misread a new folder.
"""

from msgspec import Struct

from contracts.generate import Sampling

FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"
WEIGHTS_NAME = "weights.gguf"
TENSORS_NAME = "tensors.json"
ARTIFACT_NAME = "weights.bin"
ARTIFACT_DIRECTORY_NAME = "weights.json"
CENTRES_NAME = "kv_centres.safetensors"
TOKENIZER_NAME = "tokenizer.json"
TEMPLATE_NAME = "chat_template.jinja"


class FileEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """Size and digest that a reader may verify."""

    bytes: int
    sha256: str


class ModelManifest(Struct, frozen=True, forbid_unknown_fields=True):
    """Manifest of a model folder; files maps a name in the folder to its entry, special tokens are their text.

    default_sampling is what the model's makers recommend; it stands in for fields that a client leaves out.
    """

    format_version: int
    name: str
    family: str
    context_limit: int
    vocab_size: int
    stop_token_ids: list[int]
    bos_token: str
    eos_token: str
    license: str
    files: dict[str, FileEntry]
    default_sampling: Sampling = Sampling()


class TensorEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """One tensor of a weights file: kind is the storage type's name there, shape is [rows, columns] or [length]."""

    name: str
    kind: str
    shape: list[int]
    offset: int
    bytes: int


class TensorDirectory(Struct, frozen=True, forbid_unknown_fields=True):
    """Where the tensors of one weights file lie, and the scalar metadata of that file.

    weights_bytes and weights_sha256 name the file it was made from; they must equal the manifest's entry.
    """

    weights_bytes: int
    weights_sha256: str
    architecture: str
    metadata: dict[str, int | float | str | bool]
    tensors: list[TensorEntry]
