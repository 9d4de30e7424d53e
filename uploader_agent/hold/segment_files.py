"""A partition's files as an upload reads them: from its directory, else from the held segments."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from typing_extensions import override

from tidemark.kafka_log import Lineage
from uploader_agent.disk.partition_files import PartitionFiles
from uploader_agent.disk.segment_files import OpenFile, SegmentChanged, SegmentFiles, file_name, log_bases, opened
from uploader_agent.hold.backends import HoldBackend
from uploader_agent.hold.record import HeldSegment

Held = dict[int, tuple[HeldSegment, HoldBackend]]
"""Held segments by base offset."""


class HeldFiles(SegmentFiles):
    """``disk.segment_files.SegmentFiles`` over a directory that may be gone, and the partition's held segments.

    The lineage is the live one, extended by the records of held segments with an opened ``.log``, because the broker
    forgets the epochs below its log start. Without a directory, it comes from the records alone.

    ``spoilt`` is called with a base offset and the reason when held bytes turn out to have changed.
    """

    def __init__(
        self,
        folder: Path,
        live: PartitionFiles | None,
        held: Held,
        spoilt: Callable[[int, str], None],
        restores: tuple[int, ...],
    ) -> None:
        self._folder = folder
        self._live = live
        self._held = held
        self._by_name = {name: base for base, (note, _) in held.items() for name in note.files}
        self._spoilt = spoilt
        self._restores = restores
        self._from_held: set[int] = set()
        self._stack = ExitStack()
        if live is not None:
            self._stack.callback(live.close)

    @override
    def open(self, name: str) -> OpenFile | None:
        file = self._live.open(name) if self._live else None
        if file is not None or name not in self._by_name:
            return file
        base = self._by_name[name]
        note, keeper = self._held[base]
        if not self._is_same(note):
            return None
        descriptor = keeper.open(name)
        if descriptor is None:
            return None
        self._stack.callback(os.close, descriptor)
        file = opened(name, descriptor)
        if name == note.log:
            self._from_held.add(base)
            if (file.size, file.stat.st_mtime) != (note.size, note.modified):
                raise self._no_longer_counts(base, "it was written to after it was rotated: the log was truncated")
        return file

    @override
    def lineage(self) -> Lineage:
        trusted = self._from_held
        if self._live is None:
            trusted = trusted | {base for base, (note, _) in self._held.items() if not note.deleted}
        lineage = self._live.lineage() if self._live else Lineage(restores=self._restores)
        for base in sorted(trusted, reverse=True):
            lineage = lineage.with_history(Lineage(self._held[base][0].lineage, self._restores))
        return lineage

    @override
    def next_base(self, base_offset: int) -> int | None:
        bases = set(log_bases(self._live.names())) if self._live else set()
        if base_offset not in bases and base_offset in self._held:
            return self._held[base_offset][0].next_offset
        return min((base for base in bases if base > base_offset), default=None)

    @override
    def previous_base(self, base_offset: int) -> int | None:
        bases = {*self._held, *(log_bases(self._live.names()) if self._live else ())}
        return max((base for base in bases if base < base_offset), default=None)

    @override
    def path(self, name: str) -> str:
        return str(self._folder / name)

    def close(self) -> None:
        """Close the files; held segments stay held."""
        self._stack.close()

    def _is_same(self, note: HeldSegment) -> bool:
        """True if no live segment has the base offset of the held segment, or that segment is the held one."""
        log = self._live.open(file_name(note.base_offset, "log")) if self._live else None
        return log is None or (log.size, log.stat.st_mtime) == (note.size, note.modified)

    def _no_longer_counts(self, base: int, reason: str) -> SegmentChanged:
        self._spoilt(base, reason)
        return SegmentChanged(f"{self.path(self._held[base][0].log)}: the held files no longer count: {reason}")
