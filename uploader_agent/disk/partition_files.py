"""A partition's directory on the disk of a broker, or of a spool."""

from __future__ import annotations

import errno
import os
from contextlib import ExitStack
from pathlib import Path

from typing_extensions import override

from tidemark.kafka_log import Lineage, parse_leader_epoch_checkpoint, parse_partition_metadata
from uploader_agent.disk.log_dirs import PARTITION_METADATA, open_file
from uploader_agent.disk.segment_files import (
    EPOCHS,
    OpenFile,
    SegmentChanged,
    SegmentFiles,
    batch_headers,
    file_name,
    log_bases,
    opened,
    position_before_epoch,
)


class PartitionFiles(SegmentFiles):
    """A partition's directory, held by a descriptor; usable with ``with``, which closes all files."""

    def __init__(self, folder: Path, topic_id: str | None, restores: tuple[int, ...] = ()) -> None:
        """Open ``folder``. Its log has the ``restores`` of ``offset.wm``, once that was read.

        Raises:
            SegmentChanged: it is gone, or belongs to another incarnation of the topic than ``topic_id``.
            FormatError: its ``partition.metadata`` is damaged.
            OSError: it cannot be read.
        """
        self.folder = folder
        self._restores = restores
        try:
            self._directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise SegmentChanged(f"{folder}: is gone, or a link, and none is followed") from error
        with ExitStack() as stack:
            self._stack = stack
            stack.callback(os.close, self._directory)
            text = self.text(PARTITION_METADATA)
            recorded_id = parse_partition_metadata(text, str(folder / PARTITION_METADATA)) if text is not None else None
            if None not in {recorded_id, topic_id} and recorded_id != topic_id:
                raise SegmentChanged(f"{folder}: belongs to topic id {recorded_id}, not {topic_id}")
            self._stack = stack.pop_all()

    @override
    def open(self, name: str) -> OpenFile | None:
        descriptor = self.descriptor(name)
        if descriptor is None:
            return None
        self._stack.callback(os.close, descriptor)
        return opened(name, descriptor)

    def descriptor(self, name: str) -> int | None:
        """A descriptor of a file, which the caller closes; None if there is no file. Raises OSError for a link."""
        try:
            return open_file(name, self._directory)
        except FileNotFoundError:
            return None
        except OSError as error:
            rule = "is a symbolic link, and none is followed" if error.errno == errno.ELOOP else error.strerror
            raise OSError(error.errno, rule, self.path(name)) from error

    def text(self, name: str) -> str | None:
        """The content of a small text file; None if there is none."""
        file = self.open(name)
        return None if file is None else file.read().decode("utf-8", errors="replace")

    def lineage(self) -> Lineage:
        """The lineage in ``leader-epoch-checkpoint``, whose first epoch begins at its first batch on the disk.

        DeleteRecords moves the first start in the file up to the log start, which may lie within a segment, even within
        a batch (``LeaderEpochFileCache.truncateFromStartAsyncFlush``). The batches below stay, and tell where this log
        left the stored one. Empty without the file. Raises :class:`FormatError`.
        """
        text = self.text(EPOCHS)
        lineage = Lineage() if text is None else parse_leader_epoch_checkpoint(text, str(self.folder / EPOCHS))
        begun = self._begun(*lineage.entries[0]) if lineage.entries else None
        if begun is not None:
            lineage = lineage.with_batches([begun])
        return lineage.restored(self._restores)

    def _begun(self, epoch: int, start: int) -> tuple[int, int] | None:
        """``epoch`` and the base offset of its first batch on the disk, if that is below ``start``; else None."""
        begun, base = None, self.previous_base(start) if start else None
        while base is not None:
            log = self.open(file_name(base, "log"))
            if log is None:
                break  # removed since the listing
            earlier = False
            for header in batch_headers(log, position_before_epoch(self, log, base, epoch)):
                if header.leader_epoch == epoch and header.base_offset < start:
                    begun = epoch, header.base_offset
                if header.leader_epoch >= epoch:
                    break
                earlier = True
            if earlier:
                break
            base = self.previous_base(base)
        return begun

    def names(self) -> list[str]:
        """All names in the directory, from a new listing."""
        return os.listdir(self._directory)  # noqa: PTH208 - by descriptor, not by path

    @override
    def next_base(self, base_offset: int) -> int | None:
        return min((base for base in log_bases(self.names()) if base > base_offset), default=None)

    @override
    def previous_base(self, base_offset: int) -> int | None:
        return max((base for base in log_bases(self.names()) if base < base_offset), default=None)

    @override
    def path(self, name: str) -> str:
        return str(self.folder / name)

    @override
    def close(self) -> None:
        self._stack.close()
