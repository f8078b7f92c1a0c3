"""From settings to what is drafted, and how much host memory checkpoints get. Owns what "auto" means for both.

Both are decided once, at start, and printed with the reason. Receives settings, model and machine; drafts nothing.
"""

import logging
from dataclasses import dataclass
from typing import Literal

from contracts.errors import SetupError
from engine.machine import Reading
from engine.runtime.drafter import Drafter, MtpDrafter, NgramDrafter
from engine.runtime.executor import Executor
from engine.runtime.governor import Governor
from engine.runtime.speculate import Speculation
from engine.settings import EngineSettings
from engine.spec import ModelSpec

DraftKind = Literal["none", "ngram", "mtp"]

_LOG = logging.getLogger("engine")
_DEFAULT_DRAFTS = 3
_RAM_SHARE = 4  # a quarter
_WINDOW_SHARE = 1024  # more checkpoints than one for so many positions do not shorten a way back that matters


@dataclass(frozen=True, slots=True)
class DraftChoice:
    """What is drafted; forced means that the user said so and no measurement switches it off."""

    kind: DraftKind
    num_drafts: int
    is_forced: bool

    @property
    def label(self) -> str:
        """What `/v1/info` says."""
        return "none" if self.kind == "none" else f"{self.kind}-{self.num_drafts}"


def choose_drafts(settings: EngineSettings, spec: ModelSpec, *, shares_columns: bool) -> DraftChoice:
    """The choice; shares_columns says whether the executor computes several columns for less than as many steps.

    Raises: SetupError for mtp on a model that has no such head.
    """
    if settings.speculation == "mtp" and spec.mtp_layers == 0:
        raise SetupError(f"ENGINE_SPECULATION is mtp, but {spec.name} has no MTP head; use ngram, off or auto")
    num_drafts = _DEFAULT_DRAFTS if settings.drafts == "auto" else int(settings.drafts)
    if settings.speculation == "off" or num_drafts == 0:
        return DraftChoice("none", 0, is_forced=True)
    if settings.speculation != "auto":
        return DraftChoice(settings.speculation, num_drafts, is_forced=True)
    if not shares_columns:
        _LOG.info("speculation off: this executor computes columns one by one, so a draft would save no time")
        return DraftChoice("none", 0, is_forced=False)
    kind: DraftKind = "mtp" if spec.mtp_layers else "ngram"
    reason = "the model has an MTP head" if spec.mtp_layers else "the model has no MTP head"
    _LOG.info("speculation %s with %d drafts: %s", kind, num_drafts, reason)
    return DraftChoice(kind, num_drafts, is_forced=False)


def make_speculation(choice: DraftChoice, executor: Executor) -> Speculation:
    """The choice at work on an executor that was planned for it."""
    if choice.kind == "none":
        return Speculation(None, 0)
    assert executor.max_columns > choice.num_drafts, f"{executor.max_columns} columns for {choice.num_drafts} drafts"
    drafter: Drafter = NgramDrafter()
    if choice.kind == "mtp":
        assert executor.mtp is not None, "an MTP head was chosen and not loaded"
        drafter = MtpDrafter(executor.mtp)
    return Speculation(drafter, choice.num_drafts, None if choice.is_forced else Governor())


def count_checkpoints(
    executor: Executor, context_limit: int, budget_bytes: int | None, available: Reading | None
) -> int:
    """How many state images the session may hold, from ENGINE_CHECKPOINT_BYTES or what the machine has available.

    available is host memory beyond the memory plan, None when it is unknown.
    Effects: takes an image of the empty state to see its size.
    """
    if executor.can_rewind:
        return 0
    image_bytes = executor.snapshot().num_bytes
    reason = "ENGINE_CHECKPOINT_BYTES"
    if budget_bytes is None:
        if available is None:
            budget_bytes, reason = image_bytes, "one image, because the free memory of this system is unknown"
        else:
            budget_bytes, reason = max(0, available.value) // _RAM_SHARE, f"a quarter of the {available.reason}"
    most = context_limit // _WINDOW_SHARE + 16
    count = min(budget_bytes // image_bytes, most)
    remark = ""
    if count == 0:
        remark = "; every edit of a prompt computes it anew"
    elif count == most:
        remark = f"; more would be of no use for {context_limit} positions"
    log = _LOG.info if count else _LOG.warning
    log("checkpoints: %d of %d bytes (budget %d bytes: %s)%s", count, image_bytes, budget_bytes, reason, remark)
    return count
