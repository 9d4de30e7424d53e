"""Reads Kafka's files from a broker's disk with only Python and crc32c.

* ``batch`` reads batch headers, checks their rules, and tells whether two batches are one
* ``scan`` reads a whole segment incrementally, with checksums
* ``transactions`` finds which transactions are open and which were aborted, and reads the producers' snapshots
* ``indexes`` reads and makes ``.index`` and ``.timeindex``, and reads the file names
* ``lineage`` maps offsets to the leader epochs that wrote them, and reads the text files

For any bytes that break the format, every parser raises :class:`tidemark.errors.FormatError` (``SegmentError`` for a
segment) and no other error.
"""

from tidemark.kafka_log.batch import BatchHeader, Codec, Rule, TimestampType
from tidemark.kafka_log.indexes import (
    OffsetIndexEntry,
    SegmentFileKind,
    confirms_cut,
    cut_points,
    parse_offset_index,
    parse_segment_file,
    parse_time_index,
    segment_name,
)
from tidemark.kafka_log.lineage import (
    Lineage,
    parse_leader_epoch_checkpoint,
    parse_meta_properties,
    parse_offset_checkpoint,
    parse_partition_metadata,
)
from tidemark.kafka_log.scan import SegmentScanner, SegmentSummary, end_below, scan_batches
from tidemark.kafka_log.transactions import (
    AbortedTransaction,
    OpenTransaction,
    ProducerEntry,
    TransactionTracker,
    carry_forward,
    open_transactions,
    parse_producer_snapshot,
    parse_txn_index,
)

__all__ = [
    "AbortedTransaction",
    "BatchHeader",
    "Codec",
    "Lineage",
    "OffsetIndexEntry",
    "OpenTransaction",
    "ProducerEntry",
    "Rule",
    "SegmentFileKind",
    "SegmentScanner",
    "SegmentSummary",
    "TimestampType",
    "TransactionTracker",
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
]
