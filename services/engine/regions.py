"""The regions of a memory plan as people read them: weights by kind, everything else without its layers. No torch.

Owns the grouping that `/v1/info`, the start-up log and `plan` share, so that planned and bound can be compared by name.
"""

from contracts.engine_info import Region
from engine.memory.layout import MemoryPlan
from engine.spec import ModelSpec
from engine.weights.need import DecoderNeed, MatrixKind
from engine.weights.schema import decoder_need

_GROUPS: dict[MatrixKind, str] = {
    "embedding": "weights.embedding",
    "head": "weights.head",
    "attention_qkv": "weights.attention",
    "attention_output": "weights.attention",
    "delta_input": "weights.delta",
    "delta_gates": "weights.delta",
    "delta_output": "weights.delta",
    "mlp_gate_up": "weights.mlp",
    "mlp_down": "weights.mlp",
    "mtp": "weights.mtp",
}
_MTP_PREFIX = "weights.mtp."


def group_regions(spec: ModelSpec, plan: MemoryPlan) -> list[Region]:
    """The plan's regions added up by group, in the order of first occurrence; their sum is the plan's total.

    A tied embedding counts as the head it is; norms, taps and other vectors of the layers are weights.vectors.
    """
    weights = _weight_groups(decoder_need(spec))
    sums: dict[str, int] = {}
    for region in plan.regions:
        name = weights.get(region.name) or weights.get(region.name.rpartition(".")[0])
        group = name or ".".join(region.name.split(".")[:2])
        sums[group] = sums.get(group, 0) + region.bytes
    return [Region(name, num_bytes) for name, num_bytes in sums.items()]


def _weight_groups(need: DecoderNeed) -> dict[str, str]:
    """Group by the region of a vector, or by the part before the suffix of a matrix's regions."""
    groups = {matrix.region: _GROUPS[matrix.kind] for matrix in need.matrices()}
    for vector in need.vectors():
        groups[vector.region] = "weights.mtp" if vector.region.startswith(_MTP_PREFIX) else "weights.vectors"
    return groups
