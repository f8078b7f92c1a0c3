"""The answer of `plan memory` as text for people. Owns columns and wording, no number of its own."""

from contracts.engine_info import Region
from engine.plan.report import MemoryDocument
from engine.plan.ways import MIN_CONTEXT

_NAME_COLUMNS = 44
_BYTE_COLUMNS = 16
_GIB = 1 << 30


def render(report: MemoryDocument) -> str:
    """The table and the verdict, lines ended."""
    lines = [*_head(report), "", *_device(report), "", *_arena(report)]
    if report.host_regions:
        lines += ["", _row("in host memory, not on the device", report.host_bytes)]
        lines += [_row(f"  {region.name}", region.bytes) for region in report.host_regions]
    notes = [f"note: {note}" for note in report.notes]
    return "\n".join([*lines, "", *_sources(report), *notes, "", *_verdict(report)]) + "\n"


def _head(report: MemoryDocument) -> list[str]:
    choice = report.choice
    per_token = f"{choice.kv_bytes_per_token:,} bytes a token"
    if choice.kv_bytes_per_token_with_mtp != choice.kv_bytes_per_token:
        per_token += f", {choice.kv_bytes_per_token_with_mtp:,} with the MTP head's"
    return [
        f"{report.model} on {report.device.name} ({report.device.title})",
        f"  window {choice.context:,} tokens, KV {choice.kv_format} ({per_token})",
        f"  weights {choice.weights}, embedding on the {choice.embedding}, {choice.drafts} drafts, chunks of "
        f"{choice.chunk_tokens}, executor {choice.executor}",
    ]


def _device(report: MemoryDocument) -> list[str]:
    rows = [
        f"{'':{_NAME_COLUMNS}}{'bytes':>{_BYTE_COLUMNS}}{'GiB':>10}",
        _row("device", report.device.total_bytes, "[1]"),
    ]
    for number, line in enumerate(report.reserves, start=2):
        rows.append(_row(f"- {line.name}", line.bytes, f"{line.basis} [{number}]"))
    return [*rows, _row("usable by the arena", report.usable_bytes)]


def _sources(report: MemoryDocument) -> list[str]:
    texts = [report.device.source, *(line.source for line in report.reserves)]
    return [f"[{number}] {text}" for number, text in enumerate(texts, start=1)]


def _arena(report: MemoryDocument) -> list[str]:
    sections: dict[str, list[Region]] = {}
    for region in report.regions:
        sections.setdefault(region.name.partition(".")[0], []).append(region)
    lines = []
    for section, regions in sections.items():
        if len(regions) == 1:
            lines.append(_row(regions[0].name, regions[0].bytes))
            continue
        lines.append(_row(section, sum(region.bytes for region in regions)))
        lines += [_row(f"  {region.name}", region.bytes) for region in regions]
    return [*lines, _row("arena", report.total_bytes), _row("left", report.left_bytes)]


def _verdict(report: MemoryDocument) -> list[str]:
    if report.fits:
        return [f"fits: {report.left_bytes:,} bytes ({report.left_bytes / _GIB:.2f} GiB) left"]
    deficit = f"{report.deficit_bytes:,} bytes ({report.deficit_bytes / _GIB:.2f} GiB)"
    lines = [f"does not fit: {deficit} short"]
    if report.ways:
        lines.append("to make it fit, cheapest first:")
        lines += [
            f"  {' '.join(way.options)}  (saves {way.saved_bytes:,} bytes, leaves {way.left_bytes:,})"
            for way in report.ways
        ]
    if report.smallest_bytes is not None:
        lines.append(
            f"no KV format, recipe, place of the embedding or window down to {MIN_CONTEXT:,} tokens makes it fit: the "
            f"smallest takes {report.smallest_bytes:,} bytes, usable are {report.usable_bytes:,}"
        )
    if report.cards:
        lines.append(f"cards that hold it as asked: {', '.join(report.cards)}")
    return lines


def _row(name: str, num_bytes: int, note: str = "") -> str:
    row = f"{name:{_NAME_COLUMNS}}{num_bytes:>{_BYTE_COLUMNS},}{num_bytes / _GIB:>10.3f}"
    return f"{row}  {note}" if note else row
