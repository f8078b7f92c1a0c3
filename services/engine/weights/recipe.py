"""Recipes: how many bits every kind of matrix gets in an artifact. Owns the tables; no torch, no file.

exact     numbers stay numbers (bf16, or fp32 where the checkpoint has more), for tests and tiny models
balanced  the default: 4 bits where most weights are and most forgiving (MLP in), 5 and 6 where errors travel further
compact   4 bits nearly everywhere

Models narrower than WIDE_HIDDEN have less redundancy and are small anyway, so they get more bits under the same name.
Small and sensitive tensors are never quantised: the delta layers' gate projections, taps, decay and all norms.
"""

from collections.abc import Mapping
from typing import Final, get_args

from contracts.errors import SetupError
from engine.ops.linear_layout import Bits, num_fields
from engine.spec import ModelSpec, RecipeName
from engine.weights.forms import DenseDType, DenseForm, MatrixForm, PackedForm
from engine.weights.need import DecoderNeed, MatrixKind, MatrixNeed
from engine.weights.quantize import GROUP_COLUMNS

RECIPE_NAMES: Final[tuple[RecipeName, ...]] = get_args(RecipeName)
WIDE_HIDDEN: Final = 4096
BitTable = Mapping[MatrixKind, Bits]

_BALANCED_WIDE: Final[BitTable] = {
    "embedding": 6, "head": 6, "attention_qkv": 6, "attention_output": 6, "delta_input": 5, "delta_output": 5,
    "mlp_gate_up": 4, "mlp_down": 5, "mtp": 6,
}  # fmt: skip
_COMPACT_WIDE: Final[BitTable] = {
    "embedding": 4, "head": 5, "attention_qkv": 4, "attention_output": 4, "delta_input": 4, "delta_output": 4,
    "mlp_gate_up": 4, "mlp_down": 4, "mtp": 4,
}  # fmt: skip
_BALANCED_NARROW: Final[BitTable] = {
    "embedding": 8, "head": 8, "attention_qkv": 8, "attention_output": 8, "delta_input": 8, "delta_output": 8,
    "mlp_gate_up": 8, "mlp_down": 8, "mtp": 8,
}  # fmt: skip
_COMPACT_NARROW: Final[BitTable] = {
    "embedding": 6, "head": 6, "attention_qkv": 5, "attention_output": 5, "delta_input": 5, "delta_output": 5,
    "mlp_gate_up": 5, "mlp_down": 5, "mtp": 5,
}  # fmt: skip
_NEVER_QUANTIZED: Final[frozenset[MatrixKind]] = frozenset({"delta_gates"})


def recipe_forms(
    spec: ModelSpec, need: DecoderNeed, name: RecipeName, precisions: Mapping[str, DenseDType] | None = None
) -> dict[str, MatrixForm]:
    """The form of every matrix, by region.

    precisions: for matrices that stay numbers, the dtype that holds their source, by region; bf16 where it is not said,
    which is what the models of the registry are published in.
    Raises: SetupError for a matrix whose columns do not fill whole words.
    """
    table = _table(spec, name)
    dense = precisions or {}
    forms: dict[str, MatrixForm] = {}
    for matrix in need.matrices():
        if table is None or matrix.kind in _NEVER_QUANTIZED:
            forms[matrix.region] = DenseForm(dense.get(matrix.region, "bf16"))
        else:
            forms[matrix.region] = PackedForm(_checked(matrix, table[matrix.kind]), GROUP_COLUMNS)
    return forms


def _table(spec: ModelSpec, name: RecipeName) -> BitTable | None:
    wide = spec.hidden_size >= WIDE_HIDDEN
    match name:
        case "exact":
            return None
        case "balanced":
            return _BALANCED_WIDE if wide else _BALANCED_NARROW
        case "compact":
            return _COMPACT_WIDE if wide else _COMPACT_NARROW


def _checked(matrix: MatrixNeed, bits: Bits) -> Bits:
    if matrix.num_cols % num_fields(bits):
        raise SetupError(
            f"{matrix.parts[0].tensor} has {matrix.num_cols} columns: {bits}-bit codes need a multiple of "
            f"{num_fields(bits)}; only recipe exact can hold it"
        )
    return bits
