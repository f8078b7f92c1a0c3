"""Which regions of the memory plan the weights take. Owns the way from a checkpoint or a recipe to a plan; no torch.

binding.load_weights fills exactly the regions listed here, so planned and bound bytes are equal by construction.
"""

from engine.memory.layout import LayoutBuilder
from engine.spec import ModelSpec, RecipeName
from engine.weights.checkpoint import Checkpoint
from engine.weights.recipe import recipe_forms
from engine.weights.reserve_order import reserve_regions
from engine.weights.schema import decoder_need


def reserve_weights(
    spec: ModelSpec, checkpoint: Checkpoint, builder: LayoutBuilder, embedding_builder: LayoutBuilder | None = None
) -> None:
    """Check the checkpoint against the spec and reserve every region of its weights.

    embedding_builder takes the embedding's regions instead, where it shall lie elsewhere (in host memory).
    Raises: SetupError naming what does not fit the spec, or when an embedding that is the head too is to lie elsewhere.
    """
    need = decoder_need(spec)
    reserve_regions(spec, need, checkpoint.forms(spec, need), builder, embedding_builder)


def reserve_recipe(
    spec: ModelSpec, recipe: RecipeName, builder: LayoutBuilder, embedding_builder: LayoutBuilder | None = None
) -> None:
    """Reserve what an artifact of the spec takes when it is made with the recipe, without having one.

    Equal to reserve_weights on that artifact where its source keeps small matrices in bf16, as the published ones do.
    """
    need = decoder_need(spec)
    reserve_regions(spec, need, recipe_forms(spec, need, recipe), builder, embedding_builder)


def recipe_bytes(spec: ModelSpec, recipe: RecipeName) -> int:
    """Bytes of the weights in an artifact of the spec made with the recipe."""
    builder = LayoutBuilder()
    reserve_recipe(spec, recipe, builder)
    return builder.plan().total_bytes
