"""From settings to a running engine: resolve, plan, load, warm up. Owns what "auto" means and the order of start-up.

plan_engine takes no memory and refuses what cannot run; load_engine allocates once, exactly what was planned. Nothing
takes memory of the plan's kind afterwards.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from contracts.engine_info import MemoryReport
from contracts.errors import SetupError
from contracts.model_folder import TOKENIZER_NAME
from engine.digest_check import DigestCheck
from engine.engine import Engine, Identity
from engine.machine import free_memory_bytes, usable_cpus
from engine.memory.arena import Arena
from engine.memory.layout import LayoutBuilder, MemoryPlan, WayToFit
from engine.model.decoder import Decoder, require_runnable
from engine.model.reserve import DecoderHandles, reserve_decoder
from engine.model_home import ModelFolder, open_folder
from engine.ops.kv_layout import kv_layout, smaller_formats
from engine.regions import group_regions
from engine.session import Session
from engine.settings import EngineConfig, EngineSettings
from engine.spec import KvFormat, ModelSpec
from engine.speculation import DraftChoice, choose_drafts, count_checkpoints, make_speculation
from engine.validate import RequestLimits
from engine.weights.binding import load_weights
from engine.weights.centres import KvCentres, read_centres
from engine.weights.checkpoint import Checkpoint, open_weights
from engine.weights.reserve import reserve_weights

Progress = Callable[[float], None]
"""Takes the share of start-up done, 0..1; may raise to stop it."""

_LOG = logging.getLogger("engine")
_MIN_CONTEXT = 512
_WEIGHTS_SHARE = 0.4  # of start-up, then expansion, then the warm-up
_EXPANDED_SHARE = 0.9
_WARM_UP_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Window:
    """What of the plan a user may choose."""

    context_limit: int
    kv_format: KvFormat
    chunk_tokens: int
    num_drafts: int


@dataclass(frozen=True, slots=True, eq=False)
class EnginePlan:
    """A start that was checked and took no memory yet."""

    spec: ModelSpec
    folder: ModelFolder
    checkpoint: Checkpoint
    centres: KvCentres
    window: Window
    drafts: DraftChoice
    device: torch.device
    memory: MemoryPlan
    handles: DecoderHandles
    budget_bytes: int | None
    checkpoint_bytes: int | None
    guards_repetition: bool
    threads: int


def plan_engine(config: EngineConfig, spec: ModelSpec) -> EnginePlan:
    """Resolve the settings and check that model and memory fit; every "auto" is logged with its reason.

    spec is the model that the settings name.

    Raises: SetupError.
    """
    settings = config.settings
    require_runnable(spec)
    folder = open_folder(config.home, spec.name)
    checkpoint = open_weights(folder)
    drafts = choose_drafts(settings, spec, shares_columns=Decoder.shares_columns)
    window = _resolve_window(settings, spec, drafts.num_drafts)
    device = _resolve_device(settings)
    threads = _resolve_threads(settings)
    memory, handles = _lay_out(spec, checkpoint, window)
    budget_bytes = _resolve_budget(settings, device)
    if budget_bytes is not None:
        memory.require_fit(budget_bytes, _ways_to_fit(spec, checkpoint, window, memory.total_bytes))
    return EnginePlan(
        spec=spec,
        folder=folder,
        checkpoint=checkpoint,
        centres=read_centres(folder, spec),
        window=window,
        drafts=drafts,
        device=device,
        memory=memory,
        handles=handles,
        budget_bytes=budget_bytes,
        checkpoint_bytes=settings.checkpoint_bytes,
        guards_repetition=settings.repetition_guard == "on",
        threads=threads,
    )


def load_engine(plan: EnginePlan, on_progress: Progress, on_fatal: Callable[[], None]) -> Engine:
    """Allocate, load and warm up; on_fatal is what the engine calls when its device is lost.

    Effects: sets torch's thread count for the process.
    Raises: SetupError; whatever on_progress raises.
    """
    torch.set_num_threads(plan.threads)
    digests = DigestCheck(plan.folder)
    arena = Arena(plan.memory, plan.device)
    weights = load_weights(
        plan.spec, plan.checkpoint, arena, lambda done, total: on_progress(_WEIGHTS_SHARE * done / total)
    )
    decoder = Decoder(plan.spec, weights, arena, plan.handles, plan.centres)
    on_progress(_EXPANDED_SHARE)
    context_limit = plan.window.context_limit
    num_checkpoints = count_checkpoints(decoder, context_limit, plan.checkpoint_bytes, free_memory_bytes())
    session = Session(decoder, context_limit, plan.window.chunk_tokens, num_checkpoints)
    _warm_up(session, context_limit)
    digests.require_equal()
    on_progress(1.0)
    manifest = plan.folder.manifest
    identity = Identity(
        model_id=manifest.name,
        family=manifest.family,
        tokenizer_sha256=manifest.files[TOKENIZER_NAME].sha256,
        kv_format=plan.window.kv_format,
        speculation=plan.drafts.label,
        executor=decoder.name,
        memory=report_memory(plan),
    )
    num_ids = manifest.vocab_size - plan.spec.dead_token_rows
    limits = RequestLimits(context_limit, num_ids, tuple(manifest.stop_token_ids), plan.guards_repetition)
    speculation = make_speculation(plan.drafts, decoder)
    return Engine(session, speculation, identity, limits, is_fatal=_is_device_lost, on_fatal=on_fatal)


def report_memory(plan: EnginePlan) -> MemoryReport:
    """The plan's regions in the groups that people read, as `plan` shows them."""
    left_bytes = None if plan.budget_bytes is None else plan.budget_bytes - plan.memory.total_bytes
    return MemoryReport(group_regions(plan.spec, plan.memory), plan.memory.total_bytes, left_bytes)


def _resolve_window(settings: EngineSettings, spec: ModelSpec, num_drafts: int) -> Window:
    context = spec.context_limit if settings.context is None else settings.context
    if context > spec.context_limit:
        raise SetupError(f"ENGINE_CONTEXT is {context}, {spec.name} has a window of {spec.context_limit}")
    wanted = spec.default_kv_format if settings.kv_format == "auto" else settings.kv_format
    try:
        kv_layout(wanted, spec.attention.num_kv_heads, spec.attention.head_dim)
    except ValueError as error:
        raise SetupError(f"{spec.name}: {error}") from error
    return Window(context, wanted, settings.chunk_tokens, num_drafts)


def _resolve_device(settings: EngineSettings) -> torch.device:
    has_cuda = torch.cuda.is_available()
    if settings.device == "cuda" and not has_cuda:
        raise SetupError(f"ENGINE_DEVICE is cuda, but torch {torch.__version__} sees no CUDA device")
    if settings.device != "auto":
        return torch.device(settings.device)
    _LOG.info("device %s: torch sees %s", "cuda" if has_cuda else "cpu", "a GPU" if has_cuda else "no GPU")
    return torch.device("cuda" if has_cuda else "cpu")


def _resolve_threads(settings: EngineSettings) -> int:
    if settings.threads is not None:
        return settings.threads
    cpus = usable_cpus()
    _LOG.info("threads %d: %s", cpus.value, cpus.reason)
    return cpus.value


def _resolve_budget(settings: EngineSettings, device: torch.device) -> int | None:
    if settings.memory_bytes is not None:
        return settings.memory_bytes
    if device.type == "cuda":
        free_bytes, _ = torch.cuda.mem_get_info(device)
        return free_bytes
    free = free_memory_bytes()
    if free is None:
        _LOG.warning("memory budget: none, because the free memory of this system is unknown")
        return None
    _LOG.info("memory budget %d bytes: %s", free.value, free.reason)
    return free.value


def _lay_out(spec: ModelSpec, checkpoint: Checkpoint, window: Window) -> tuple[MemoryPlan, DecoderHandles]:
    builder = LayoutBuilder()
    reserve_weights(spec, checkpoint, builder)
    handles = reserve_decoder(
        builder, spec, window.kv_format, window.context_limit, window.chunk_tokens, window.num_drafts
    )
    return builder.plan(), handles


def _ways_to_fit(spec: ModelSpec, checkpoint: Checkpoint, window: Window, total_bytes: int) -> list[WayToFit]:
    """Smaller settings and what each saves on its own."""

    def way(change: str, smaller: Window) -> WayToFit:
        return WayToFit(change, total_bytes - _lay_out(spec, checkpoint, smaller)[0].total_bytes)

    ways = [
        way(f"ENGINE_KV_FORMAT={smaller}", replace(window, kv_format=smaller))
        for smaller in smaller_formats(window.kv_format, spec.attention.head_dim)
    ]
    if window.chunk_tokens > 64:
        ways.append(way("ENGINE_CHUNK_TOKENS=64", replace(window, chunk_tokens=64)))
    if window.num_drafts:
        ways.append(way("ENGINE_DRAFTS=0", replace(window, num_drafts=0)))
    smaller = window.context_limit // 2
    while smaller >= _MIN_CONTEXT:
        ways.append(way(f"ENGINE_CONTEXT={smaller}", replace(window, context_limit=smaller)))
        smaller //= 2
    return ways


def _warm_up(session: Session, context_limit: int) -> None:
    """Run both modes once: libraries set themselves up, and the pace of prefill is known before the first request."""
    ids = np.zeros(min(_WARM_UP_TOKENS, context_limit - 1), dtype=np.int64)
    session.sync(ids)
    for _ in session.prefill(ids, output_start=len(ids)):
        pass
    session.advance(0)
    session.drop()


def _is_device_lost(error: BaseException) -> bool:
    return isinstance(error, torch.AcceleratorError)
