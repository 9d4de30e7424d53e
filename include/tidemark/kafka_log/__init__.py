"""Kafka's files as they lie on a broker's disk, read with nothing but Python and crc32c.

* ``batch``: batch headers and the rules they keep; ``scan``: a whole segment, incrementally, with checksums
* ``transactions``, ``producer_snapshot``: which transactions are open, which were aborted
* ``indexes``: ``.index`` and ``.timeindex``; ``checkpoints``: the text files; ``names``: file names
* ``lineage``: which leader epoch wrote which offsets

Every parser raises :class:`tidemark.errors.FormatError` (a segment's: ``SegmentError``) for bytes that break the
format, whatever they are, and nothing else.
"""

from tidemark.kafka_log.batch import BatchHeader, Codec, Rule, TimestampType
from tidemark.kafka_log.checkpoints import (
    parse_leader_epoch_checkpoint,
    parse_meta_properties,
    parse_offset_checkpoint,
    parse_partition_metadata,
)
from tidemark.kafka_log.indexes import (
    OffsetIndexEntry,
    TimeIndexEntry,
    confirms_cut,
    cut_points,
    parse_offset_index,
    parse_time_index,
    valid_index_prefix,
    valid_time_index_prefix,
)
from tidemark.kafka_log.lineage import Lineage
from tidemark.kafka_log.names import SegmentFileKind, parse_segment_file, segment_name
from tidemark.kafka_log.producer_snapshot import ProducerEntry, open_transactions, parse_producer_snapshot
from tidemark.kafka_log.scan import SegmentScanner, SegmentSummary, end_below, scan_batches
from tidemark.kafka_log.transactions import (
    AbortedTransaction,
    TransactionTracker,
    UnfinishedTransaction,
    carry_forward,
    parse_txn_index,
)

__all__ = [
    "AbortedTransaction",
    "BatchHeader",
    "Codec",
    "Lineage",
    "OffsetIndexEntry",
    "ProducerEntry",
    "Rule",
    "SegmentFileKind",
    "SegmentScanner",
    "SegmentSummary",
    "TimeIndexEntry",
    "TimestampType",
    "TransactionTracker",
    "UnfinishedTransaction",
    "carry_forward",
    "confirms_cut",
    "cut_points",
    "end_below",
    "open_transactions",
    "parse_leader_epoch_checkpoint",
    "parse_meta_properties",
    "parse_offset_checkpoint",
    "parse_offset_index",
    "parse_partition_metadata",
    "parse_producer_snapshot",
    "parse_segment_file",
    "parse_time_index",
    "parse_txn_index",
    "scan_batches",
    "segment_name",
    "valid_index_prefix",
    "valid_time_index_prefix",
]
