"""Compares a source with what a model needs, before any memory is taken. Owns the messages; reads no number."""

from collections.abc import Sequence

from contracts.errors import SetupError
from engine.spec import ModelSpec
from engine.weights.need import DecoderNeed
from engine.weights.tensor_source import TensorSource

_MAX_LISTED = 5


def check_source(spec: ModelSpec, need: DecoderNeed, source: TensorSource) -> None:
    """Compare description, names, shapes and kinds.

    Raises: SetupError with the setting that differs, or up to five tensors that are missing, surplus or misshapen.
    """
    source.check_spec(spec)
    wanted: dict[str, list[int]] = {
        part.tensor: [part.num_rows, part.num_cols] for matrix in need.matrices() for part in matrix.parts
    }
    wanted |= {vector.tensor: list(vector.shape) for vector in need.vectors()}
    found = source.tensors
    _refuse(source, "missing", sorted(source.spell(name) for name in wanted if name not in found))
    surplus = [stored.spelling for name, stored in found.items() if name not in wanted]
    _refuse(source, "not part of this model", sorted([*surplus, *source.unknown]))
    wrong = [
        f"{found[name].spelling} is {list(found[name].shape)}, expected {shape}"
        for name, shape in wanted.items()
        if list(found[name].shape) != shape
    ]
    _refuse(source, "misshapen", wrong)
    for vector in need.vectors():
        stored = found[vector.tensor]
        if stored.precision is None:
            raise SetupError(f"{source.path}: vector {stored.spelling} is stored as {stored.kind}, expected numbers")


def _refuse(source: TensorSource, fault: str, names: Sequence[str]) -> None:
    if names:
        more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
        raise SetupError(f"{source.path}: tensors {fault}: {'; '.join(names[:_MAX_LISTED])}{more}")
