"""What the engine would bind for a choice of settings: its own reservations, into a plan that nobody allocates.

Owns the choice and its layout. Receives a spec and where its weights come from; knows no card and no budget.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from engine.memory.layout import LayoutBuilder, MemoryPlan
from engine.model.packed_reserve import PackedWindow, reserve_packed
from engine.model.reserve import reserve_decoder
from engine.ops.kv_layout import kv_bytes_per_token
from engine.spec import KvFormat, ModelSpec, RecipeName
from engine.weights.checkpoint import Checkpoint
from engine.weights.forms import MatrixForm
from engine.weights.recipe import recipe_forms
from engine.weights.reserve_order import reserve_regions
from engine.weights.schema import decoder_need

ExecutorName = Literal["packed", "reference"]
Place = Literal["device", "host"]


@dataclass(frozen=True, slots=True)
class Choice:
    """What a user may choose; recipe None takes the weights that are on disk."""

    kv_format: KvFormat
    context_limit: int
    num_drafts: int
    chunk_tokens: int
    embedding: Place
    recipe: RecipeName | None
    executor: ExecutorName


@dataclass(frozen=True, slots=True)
class Demand:
    """The arena's plan, and what lies in host memory beside it."""

    device: MemoryPlan
    host: MemoryPlan


class Planner:
    """Lays out choices for one model; checkpoint is None when its weights are not on disk."""

    def __init__(self, spec: ModelSpec, checkpoint: Checkpoint | None, *, can_convert: bool) -> None:
        """can_convert: whether weights of another recipe can be made of the model's source."""
        self.spec: Final = spec
        self.can_convert: Final = can_convert
        self._checkpoint = checkpoint
        self._need = decoder_need(spec)
        self._weight_bytes: dict[tuple[RecipeName | None, Place], int] = {}

    def lay_out(self, choice: Choice) -> Demand:
        """Reserve everything.

        Raises: SetupError when the recipe or the place of the embedding cannot be; ValueError when the KV format
                cannot hold the model's heads.
        """
        device, host = LayoutBuilder(), LayoutBuilder()
        self._reserve_weights(choice, device, host)
        self._reserve_rest(choice, device)
        return Demand(device.plan(), host.plan())

    def total_bytes(self, choice: Choice) -> int:
        """lay_out(choice).device.total_bytes, without laying out the weights again for each choice.

        Spans are multiples of the alignment that every region has, so sums of parts are the sum of the whole.
        """
        key = (choice.recipe, choice.embedding)
        if key not in self._weight_bytes:
            weights, host = LayoutBuilder(), LayoutBuilder()
            self._reserve_weights(choice, weights, host)
            self._weight_bytes[key] = weights.plan().total_bytes
        rest = LayoutBuilder()
        self._reserve_rest(choice, rest)
        return self._weight_bytes[key] + rest.plan().total_bytes

    def cache_bytes_per_token(self, choice: Choice) -> tuple[int, int]:
        """Bytes that one token of context takes in the main model's cache, and with the MTP head's."""
        dims, num_layers = self.spec.attention, self.spec.num_attention_layers
        num_mtp = self.spec.mtp_layers if choice.num_drafts else 0
        main, all_layers = (
            kv_bytes_per_token(choice.kv_format, layers, dims.num_kv_heads, dims.head_dim)
            for layers in (num_layers, num_layers + num_mtp)
        )
        return main, all_layers

    def _forms(self, recipe: RecipeName | None) -> Mapping[str, MatrixForm]:
        if recipe is not None:
            return recipe_forms(self.spec, self._need, recipe)
        assert self._checkpoint is not None, "without a recipe the weights must be on disk"
        return self._checkpoint.forms(self.spec, self._need)

    def _reserve_weights(self, choice: Choice, device: LayoutBuilder, host: LayoutBuilder) -> None:
        embedding = host if choice.embedding == "host" else None
        reserve_regions(self.spec, self._need, self._forms(choice.recipe), device, embedding)

    def _reserve_rest(self, choice: Choice, device: LayoutBuilder) -> None:
        context, chunk, drafts = choice.context_limit, choice.chunk_tokens, choice.num_drafts
        if choice.executor == "packed":
            reserve_packed(device, self.spec, PackedWindow(choice.kv_format, context, chunk, drafts))
        else:
            reserve_decoder(device, self.spec, choice.kv_format, context, chunk, drafts)
