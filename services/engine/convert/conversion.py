"""One conversion from opened input to finished folder: check, plan, stream, describe, rename. Owns the order.

Everything happens in a hidden folder beside the final one, under a lock; a killed conversion leaves it there and the
same command goes on. A refused one (a tensor that is not finite) leaves nothing.
"""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from contracts.errors import SetupError
from engine.convert.describe import Finished, describe_artifact
from engine.convert.inputs import ConversionInput, open_input
from engine.convert.writer import JOURNAL_NAME, ArtifactWriter
from engine.durable import sync_folder
from engine.memory.layout import LayoutBuilder, MemoryPlan, Region
from engine.model_home import ModelFolder, read_folder
from engine.ops.linear_layout import LAYOUT_VERSION
from engine.progress import ProgressLine
from engine.registry import RegisteredModel, find
from engine.spec import ModelSpec, RecipeName, describe_differences
from engine.weights.artifact import ARTIFACT_VERSION
from engine.weights.check import check_source
from engine.weights.fill import Fidelity, fill_matrix, fill_vector
from engine.weights.forms import MatrixForm, matrix_regions
from engine.weights.need import DecoderNeed
from engine.weights.recipe import recipe_forms
from engine.weights.reserve_order import reserve_regions
from engine.weights.schema import decoder_need
from engine.weights.stored import dense_dtype

SMALL_FILES_BYTES: Final = 64_000_000  # tokenizer, directory, journal
# Two specs may differ here: a name, and what only the registry or only the tokenizer knows.
_NOT_IN_CONFIG = frozenset({"name", "default_kv_format", "dead_token_rows"})


@dataclass(frozen=True, slots=True)
class ConversionJob:
    """What to convert: a checkpoint, the final folder, the model's name, the recipe; threads encode."""

    source: Path
    out: Path
    name: str
    recipe: RecipeName
    threads: int


def convert(job: ConversionJob, progress: ProgressLine) -> ModelFolder:
    """Make the artifact's folder, going on where an earlier run of the same job was stopped.

    Raises: SetupError when the checkpoint is refused (nothing is left) or disk space is short; OSError and
            KeyboardInterrupt pass, and what is finished by then is kept.
    """
    work = _plan(job)
    partial = partial_folder(job.out)
    partial.mkdir(parents=True, exist_ok=True)
    with _lock(partial):
        _require_space(job, work, partial, progress)
        try:
            finished = _stream(work, partial, progress, job)
        except SetupError:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        progress.note("writing directory, tokenizer and manifest")
        describe_artifact(partial, finished)
        (partial / JOURNAL_NAME).unlink()
        sync_folder(partial)
        partial.rename(job.out)
        sync_folder(job.out.parent)
    return read_folder(job.out)


def partial_folder(out: Path) -> Path:
    """Where a conversion into `out` works."""
    return out.parent / f".converting-{out.name}"


def count_kept(out: Path) -> int:
    """Matrices and vectors that a stopped conversion into `out` has finished."""
    journal = partial_folder(out) / JOURNAL_NAME
    return max(0, journal.read_bytes().count(b"\n") - 1) if journal.exists() else 0


@dataclass(frozen=True, slots=True, eq=False)
class _Work:
    """A job whose input is open and fits."""

    opened: ConversionInput
    registered: RegisteredModel | None
    spec: ModelSpec
    need: DecoderNeed
    forms: Mapping[str, MatrixForm]
    plan: MemoryPlan

    def fingerprint(self, job: ConversionJob) -> str:
        """Changes whenever finished bytes of another run would be wrong here."""
        parts = (ARTIFACT_VERSION, LAYOUT_VERSION, job.recipe, self.opened.identity, self.forms, self.plan.regions)
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def items(self) -> dict[str, list[Region]]:
        """Every matrix and vector with its regions, in the order of the plan."""
        by_name = {region.name: region for region in self.plan.regions}
        items = {
            matrix.region: [by_name[region.name] for region in matrix_regions(matrix, self.forms[matrix.region])]
            for matrix in self.need.matrices()
        }
        return items | {vector.region: [by_name[vector.region]] for vector in self.need.vectors()}


def _plan(job: ConversionJob) -> _Work:
    opened = open_input(job.source, job.name)
    registered = find(job.name)
    spec = _spec(job, opened, registered)
    need = decoder_need(spec)
    check_source(spec, need, opened.source)
    dense = {matrix.region: dense_dtype(matrix, opened.source) for matrix in need.matrices()}
    forms = recipe_forms(spec, need, job.recipe, dense)
    builder = LayoutBuilder()
    reserve_regions(spec, need, forms, builder)
    return _Work(opened, registered, spec, need, forms, builder.plan())


def _spec(job: ConversionJob, opened: ConversionInput, registered: RegisteredModel | None) -> ModelSpec:
    """The spec of the artifact; a name of the registry must be that model."""
    num_tokens, vocab_size = opened.text.num_tokens, opened.spec.vocab_size
    if num_tokens > vocab_size:
        raise SetupError(f"{job.source}: the tokenizer has {num_tokens} tokens, the vocabulary {vocab_size} rows")
    spec = replace(opened.spec, dead_token_rows=vocab_size - num_tokens)
    if registered is None:
        return spec
    differences = describe_differences(registered.spec, opened.spec, ignore=_NOT_IN_CONFIG)
    if differences:
        raise SetupError(f"{job.source} is not {job.name}: {differences}")
    expected = vocab_size - registered.spec.dead_token_rows
    if num_tokens != expected:
        raise SetupError(f"{job.source} is not {job.name}: its tokenizer has {num_tokens} tokens, expected {expected}")
    return registered.spec


def _stream(work: _Work, partial: Path, progress: ProgressLine, job: ConversionJob) -> Finished:
    """Write weights.bin, from the first item that is not finished on."""
    writer = ArtifactWriter(partial, work.plan, work.items())
    writer.open(work.fingerprint(job), lambda done, total: progress.show("checking what is there", done, total))
    with ThreadPoolExecutor(job.threads) as executor:
        try:
            _write_items(work, writer, progress, executor if job.threads > 1 else None)
            sha256 = writer.close()
        finally:
            writer.abandon()
            executor.shutdown(cancel_futures=True)
    return Finished(
        work.spec, work.registered, work.opened.text, work.opened.description, job.recipe, work.forms, work.plan,
        writer.entries, sha256,
    )  # fmt: skip


def _write_items(
    work: _Work, writer: ArtifactWriter, progress: ProgressLine, executor: ThreadPoolExecutor | None
) -> None:
    source = work.opened.source
    done_bytes, total_bytes = 0, sum(stored.num_bytes for stored in source.tensors.values())
    for matrix in work.need.matrices():
        if matrix.region not in writer.entries:
            writer.finish(matrix.region, fill_matrix(matrix, work.forms[matrix.region], source, writer, executor))
            source.release()
        done_bytes += sum(source.tensors[part.tensor].num_bytes for part in matrix.parts)
        progress.show("converting", done_bytes, total_bytes)
    for vector in work.need.vectors():
        if vector.region not in writer.entries:
            fill_vector(vector, source, writer)
            writer.finish(vector.region, Fidelity())
        done_bytes += source.tensors[vector.tensor].num_bytes
        progress.show("converting", done_bytes, total_bytes)


def _require_space(job: ConversionJob, work: _Work, partial: Path, progress: ProgressLine) -> None:
    kept_bytes = sum(file.stat().st_size for file in partial.iterdir())
    needed = work.plan.total_bytes + SMALL_FILES_BYTES - kept_bytes
    free = shutil.disk_usage(partial).free
    if needed > free:
        with suppress(OSError):  # it is not empty where an earlier run was stopped
            partial.rmdir()
        raise SetupError(f"converting to {job.out} needs {needed} bytes there, {free} are free")
    progress.note(
        f"{job.name}, recipe {job.recipe}: {work.plan.total_bytes / 1e9:.2f} GB to {job.out}, {free / 1e9:.0f} GB free"
    )


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Hold an advisory lock on the working folder that the system drops when the process ends."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise SetupError(f"another conversion is at work in {folder}") from error
    finally:
        os.close(descriptor)
