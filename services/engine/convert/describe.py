"""What lies beside weights.bin: directory, tokenizer, template, manifest. Owns their content.

A model of the registry gets the registry's stop tokens, sampling and licence; any other what its checkpoint says.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from contracts import codec
from contracts.model_folder import (
    ARTIFACT_DIRECTORY_NAME,
    ARTIFACT_NAME,
    FORMAT_VERSION,
    MANIFEST_NAME,
    TEMPLATE_NAME,
    TOKENIZER_NAME,
    FileEntry,
    ModelManifest,
)
from engine.convert.text_files import TextFiles
from engine.convert.writer import JournalEntry
from engine.durable import write_durably
from engine.memory.layout import MemoryPlan
from engine.model_home import file_sha256
from engine.ops.linear_layout import LAYOUT_VERSION
from engine.registry import RegisteredModel
from engine.spec import ModelSpec, RecipeName
from engine.weights.artifact import ARTIFACT_VERSION, ArtifactDirectory, RegionRecord, matrix_record
from engine.weights.forms import MatrixForm


@dataclass(frozen=True, slots=True)
class Finished:
    """Everything known when weights.bin is whole; entries are the journal's, by item."""

    spec: ModelSpec
    registered: RegisteredModel | None
    text: TextFiles
    source: str
    recipe: RecipeName
    forms: Mapping[str, MatrixForm]
    plan: MemoryPlan
    entries: Mapping[str, JournalEntry]
    sha256: str


def describe_artifact(folder: Path, finished: Finished) -> None:
    """Write the files beside weights.bin."""
    weights = FileEntry(bytes=finished.plan.total_bytes, sha256=finished.sha256)
    write_durably(folder / ARTIFACT_DIRECTORY_NAME, msgspec.json.encode(_directory(finished)))
    write_durably(folder / TOKENIZER_NAME, finished.text.tokenizer_json)
    write_durably(folder / TEMPLATE_NAME, finished.text.template.encode())
    files = {ARTIFACT_NAME: weights}
    for name in (ARTIFACT_DIRECTORY_NAME, TOKENIZER_NAME, TEMPLATE_NAME):
        files[name] = FileEntry(bytes=(folder / name).stat().st_size, sha256=file_sha256(folder / name))
    write_durably(folder / MANIFEST_NAME, codec.encode(_manifest(finished, files)))


def _directory(finished: Finished) -> ArtifactDirectory:
    digests = {name: sha256 for entry in finished.entries.values() for name, sha256 in entry.digests.items()}
    return ArtifactDirectory(
        format_version=ARTIFACT_VERSION,
        layout_version=LAYOUT_VERSION,
        recipe=finished.recipe,
        source=finished.source,
        spec=finished.spec,
        weights_bytes=finished.plan.total_bytes,
        matrices=[
            matrix_record(region, form, finished.entries[region].fidelity.relative_error)
            for region, form in finished.forms.items()
        ],
        regions=[
            RegionRecord(r.name, r.dtype, r.shape, r.offset, r.tensor_bytes, digests[r.name])
            for r in finished.plan.regions
        ],
    )


def _manifest(finished: Finished, files: dict[str, FileEntry]) -> ModelManifest:
    spec, text, registered = finished.spec, finished.text, finished.registered
    return ModelManifest(
        format_version=FORMAT_VERSION,
        name=spec.name,
        family=spec.family,
        context_limit=spec.context_limit,
        vocab_size=spec.vocab_size,
        stop_token_ids=list(text.stop_token_ids if registered is None else registered.stop_token_ids),
        bos_token=text.bos_token,
        eos_token=text.eos_token,
        license="unknown" if registered is None else registered.source.license,
        files=files,
        default_sampling=text.default_sampling if registered is None else registered.default_sampling,
    )
