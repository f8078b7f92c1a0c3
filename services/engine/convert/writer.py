"""weights.bin as it grows, and the journal that lets a killed conversion go on. Owns order, padding and digests.

The file is only ever appended to, in the order of the plan, so what is finished is a prefix. After every matrix or
vector the journal gets a line with its end and its regions' SHA-256. A later run reads the finished prefix, compares
digests, cuts off the rest and goes on there.
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from contracts.model_folder import ARTIFACT_NAME
from engine.memory.layout import MemoryPlan, Region
from engine.weights.fill import Fidelity, Progress

JOURNAL_NAME: Final = "journal.jsonl"
_READ_BYTES = 1 << 20


class JournalStart(msgspec.Struct, frozen=True):
    """First line: what is converted, how, to what; another fingerprint means another conversion."""

    fingerprint: str


class JournalEntry(msgspec.Struct, frozen=True):
    """A finished matrix or vector: item is its region's name, end the file's length behind it."""

    item: str
    end: int
    squared_error: float
    energy: float
    digests: dict[str, str]

    @property
    def fidelity(self) -> Fidelity:
        """How far the stored numbers are from the source's."""
        return Fidelity(self.squared_error, self.energy)


class ArtifactWriter:
    """A RegionSink. Call open, then for every item its regions and finish, then close."""

    def __init__(self, folder: Path, plan: MemoryPlan, items: Mapping[str, list[Region]]) -> None:
        """items maps every matrix and vector to its regions, all in the order of the plan."""
        self._folder = folder
        self._plan = plan
        self._items = items
        self._regions = {region.name: region for regions in items.values() for region in regions}
        self._file_digest = hashlib.sha256()
        self._digests: dict[str, str] = {}
        self._region_digest = hashlib.sha256()
        self._end = 0
        self.entries: dict[str, JournalEntry] = {}

    def open(self, fingerprint: str, on_verified: Progress) -> None:
        """Begin, or go on behind the items that an earlier run of the same conversion finished.

        on_verified(done_bytes, total_bytes) counts bytes of the earlier run as they are read again.
        """
        kept = self._read_journal(fingerprint)
        self._file: BinaryIO = (self._folder / ARTIFACT_NAME).open("r+b" if kept else "w+b")
        total_bytes = kept[-1].end if kept else 0
        for entry in kept:
            end = self._end
            if not self._verify(entry):
                self._end = end
                break
            self.entries[entry.item] = entry
            on_verified(self._end, total_bytes)
        self._file.seek(self._end)
        self._file.truncate()
        self._journal = (self._folder / JOURNAL_NAME).open("wb")
        self._journal.write(msgspec.json.encode(JournalStart(fingerprint)) + b"\n")
        for entry in self.entries.values():
            self._journal.write(msgspec.json.encode(entry) + b"\n")
        self._journal.flush()

    def put(self, region: str, first_row: int, rows: NDArray[Any]) -> None:
        """See RegionSink."""
        planned = self._regions[region]
        content = np.ascontiguousarray(rows)
        row_bytes = planned.tensor_bytes // planned.shape[0]
        if first_row == 0:
            self._append(bytes(planned.offset - self._end))
            self._region_digest = hashlib.sha256()
        assert self._end == planned.offset + first_row * row_bytes, f"{region} row {first_row} is out of order"
        data = content.reshape(-1).view(np.uint8).data
        self._region_digest.update(data)
        self._append(data)
        if self._end == planned.offset + planned.tensor_bytes:
            self._digests[region] = self._region_digest.hexdigest()

    def finish(self, item: str, fidelity: Fidelity) -> None:
        """Record that every region of an item is written."""
        digests = {region.name: self._digests[region.name] for region in self._items[item]}
        entry = JournalEntry(item, self._end, fidelity.squared_error, fidelity.energy, digests)
        self.entries[item] = entry
        self._file.flush()
        self._journal.write(msgspec.json.encode(entry) + b"\n")
        self._journal.flush()

    def close(self) -> str:
        """Pad to the plan's length, put everything on disk; returns the SHA-256 of the whole file."""
        self._append(bytes(self._plan.total_bytes - self._end))
        self._file.flush()
        os.fsync(self._file.fileno())
        self.abandon()
        return self._file_digest.hexdigest()

    def abandon(self) -> None:
        """Close the files as they are; a later run goes on."""
        self._file.close()
        self._journal.close()

    def _append(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._file_digest.update(data)
        self._end += len(data)

    def _read_journal(self, fingerprint: str) -> list[JournalEntry]:
        """Entries of an earlier run of the same conversion, in order, as far as the lines are whole."""
        try:
            lines = (self._folder / JOURNAL_NAME).read_bytes().split(b"\n")
            start = msgspec.json.decode(lines[0], type=JournalStart)
        except (FileNotFoundError, msgspec.DecodeError):
            return []
        if start.fingerprint != fingerprint or not (self._folder / ARTIFACT_NAME).exists():
            return []
        entries: list[JournalEntry] = []
        for item, line in zip(self._items, lines[1:], strict=False):
            try:
                entry = msgspec.json.decode(line, type=JournalEntry)
            except msgspec.DecodeError:
                break
            if entry.item != item:
                break
            entries.append(entry)
        return entries

    def _verify(self, entry: JournalEntry) -> bool:
        """Read one item's bytes and compare; moves on only when all is as it was written."""
        file_digest = self._file_digest.copy()
        for region in self._items[entry.item]:
            if not self._skip_to(region.offset, file_digest, None):
                return False
            digest = hashlib.sha256()
            if not self._skip_to(region.offset + region.tensor_bytes, file_digest, digest):
                return False
            if digest.hexdigest() != entry.digests.get(region.name):
                return False
        self._file_digest = file_digest
        self._digests |= entry.digests
        return True

    def _skip_to(self, offset: int, file_digest: "hashlib._Hash", region_digest: "hashlib._Hash | None") -> bool:
        """Read up to an offset into the digests; False when the file ends before."""
        while self._end < offset:
            data = self._file.read(min(_READ_BYTES, offset - self._end))
            if not data:
                return False
            file_digest.update(data)
            if region_digest is not None:
                region_digest.update(data)
            self._end += len(data)
        return True
