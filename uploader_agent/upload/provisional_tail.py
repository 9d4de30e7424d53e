"""The tail of a quiet partition: the active segment up to the high watermark, its indexes cut to their valid entries.

Kafka preallocates the indexes of an active segment with zeros and may leave entries of a truncated log behind. The
number of batches bounds how much of them can be valid, so no more than that is read.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidemark.kafka_log import SegmentSummary, end_below, parse_txn_index, valid_index_prefix, valid_time_index_prefix
from tidemark.kafka_log.indexes import INDEX_ENTRY_SIZE, TIME_INDEX_ENTRY_SIZE
from tidemark.kafka_log.transactions import TXN_INDEX_ENTRY_SIZE
from uploader_agent.disk.segment_files import Bytes, OpenFile, SegmentFiles, file_name


def cut_log(log: OpenFile, path: str, base_offset: int, high_watermark: int) -> OpenFile:
    """``log`` up to the last batch that lies wholly below the high watermark. Raises SegmentError if it is damaged."""
    size, _ = end_below(log.chunks(), path, base_offset, high_watermark)
    return log.cut(size)


def cut_indexes(files: SegmentFiles, base_offset: int, summary: SegmentSummary) -> Iterator[Bytes]:
    """The index files of the first ``summary.size`` bytes, which end before ``summary.next_offset``."""
    end, entries = summary.next_offset, summary.batch_count
    index = _read(files, file_name(base_offset, "index"), entries * INDEX_ENTRY_SIZE)
    if index is not None:
        valid = valid_index_prefix(index.content, summary.size, end, base_offset, files.path(index.name))
        yield Bytes(index.name, index.content[:valid])
    time_index = _read(files, file_name(base_offset, "timeindex"), entries * TIME_INDEX_ENTRY_SIZE)
    if time_index is not None:
        valid = valid_time_index_prefix(time_index.content, end, base_offset, files.path(time_index.name))
        yield Bytes(time_index.name, time_index.content[:valid])
    aborted = files.open(file_name(base_offset, "txnindex"))
    if aborted is not None:
        content = aborted.read()[: aborted.size // TXN_INDEX_ENTRY_SIZE * TXN_INDEX_ENTRY_SIZE]
        known = parse_txn_index(content, files.path(aborted.name))
        decided = sum(transaction.last_offset < end for transaction in known)
        if decided:
            yield Bytes(aborted.name, content[: decided * TXN_INDEX_ENTRY_SIZE])


def _read(files: SegmentFiles, name: str, size: int) -> Bytes | None:
    file = files.open(name)
    return None if file is None else Bytes(name, file.cut(min(file.size, size)).read())
