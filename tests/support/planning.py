"""`plan memory` in the test's process: a command line in, the document out, without any model on disk."""

from pathlib import Path

from contracts.plan_arguments import parse_plan
from engine.plan.command import plan_memory
from engine.plan.report import MemoryDocument

GIB = 1 << 30
NO_HOME = Path("/nonexistent")


def plan(*arguments: str, home: Path = NO_HOME) -> MemoryDocument:
    """The answer to `plan memory ARGUMENTS`."""
    return plan_memory(parse_plan("plan", arguments)[1], home)


def section_bytes(report: MemoryDocument, section: str) -> int:
    """Bytes of all regions whose name begins with the section."""
    return sum(region.bytes for region in report.regions if region.name.partition(".")[0] == section)
