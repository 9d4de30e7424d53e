"""What a reader finds of a partition: heads, then ``offset.wm``, then the manifests."""

from __future__ import annotations

from tidemark.errors import FormatError, StoreError
from tidemark.formats.raw.head import Head
from tidemark.intervals import Intervals
from tidemark.kafka_log import scan_batches
from tidemark.raw.heads import read_head
from tidemark.raw.objects import read_manifest
from tidemark.raw.packs import TailRanges
from tidemark.raw.segments import Segment, SegmentPiece, cover, segment_of
from tidemark.storage import ClusterStore, PartitionStore
from tidemark.store import Store
from uploader_agent.stored import watermark

_ALL = 1 << 40


def heads(cluster: ClusterStore) -> list[Head]:
    """All brokers' heads."""
    numbers = [info.key.rpartition("/")[2].removesuffix(".json") for info in cluster.store.list(cluster.keys.heads)]
    found = [read_head(cluster, int(number)) for number in numbers]
    return [one.value for one in found if one is not None]


def seals(partition: PartitionStore) -> list[Segment]:
    """The partition's segments."""
    found = [one for one in partition.objects(0, None) if one.extension == "manifest.json"]
    stored = [(one.info.key, read_manifest(partition, one.name)) for one in found]
    return [segment_of(one.manifest, key, partition.store.url) for key, one in stored if one is not None]


def _failed(error: FormatError | StoreError) -> None:
    raise error


def pieces(partition: PartitionStore) -> list[SegmentPiece]:
    """What is planned of a partition, up to the first hole; nothing before it is claimed."""
    read = heads(partition.cluster)
    found = watermark.read(partition)
    if found is None:
        return []
    written = found.watermark
    lineage, end = written.history, written.next_offset
    ours = written.topic_id, partition.keys.partition
    entries = [one for head in read for one in head.entries if (one.topic_id, one.partition) == ours]
    ranges = TailRanges(partition).segments(entries, lineage, end, _failed)
    return cover([*seals(partition), *ranges], lineage, Intervals([(written.start_offset, _ALL)]))[0]


def content(store: Store, planned: list[SegmentPiece], below: int) -> bytes:
    """The bytes of the planned batches that end at or below an offset, in order."""
    found = b""
    for segment, start, end in planned:
        data = store.get_range(segment.key, segment.position, segment.position + segment.size)
        for header in scan_batches([data], segment.key, segment.base):
            if start <= header.base_offset and header.next_offset <= min(end, below):
                found += data[header.position : header.end]
    return found
