"""A run of batches from packs, as the local files from which a seal is made."""

from __future__ import annotations

import os
from contextlib import ExitStack

from typing_extensions import override

from tidemark.kafka_log import Lineage
from uploader_agent.disk.segment_files import OpenFile, SegmentFiles, file_name, opened


class PackedFiles(SegmentFiles):
    """A single ``.log`` with the bytes ``data``, in a file in memory."""

    def __init__(self, base_offset: int, data: bytes, lineage: Lineage) -> None:
        self._name = file_name(base_offset, "log")
        self._lineage = lineage
        self._stack = ExitStack()
        self._descriptor = os.memfd_create(self._name)
        self._stack.callback(os.close, self._descriptor)
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]

    @property
    def log(self) -> OpenFile:
        """The file."""
        return opened(self._name, self._descriptor)

    @override
    def open(self, name: str) -> OpenFile | None:
        return self.log if name == self._name else None

    @override
    def lineage(self) -> Lineage:
        return self._lineage

    @override
    def next_base(self, base_offset: int) -> int | None:
        return None

    @override
    def previous_base(self, base_offset: int) -> int | None:
        return None

    @override
    def path(self, name: str) -> str:
        return f"{name} from packs"

    @override
    def close(self) -> None:
        self._stack.close()
