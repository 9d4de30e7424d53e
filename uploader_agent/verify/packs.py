"""Compares the packs that still exist with the segments that have replaced them, even if no head leads to them.

Memory is bounded by the ranges that are compared at a time, and time by the packs of the brokers that have replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, islice

from tidemark.errors import FormatError, NotFound
from tidemark.formats.keys import Endpoint, TopicPartition
from tidemark.formats.raw.head import PartitionOfId
from tidemark.formats.raw.pack import PackedRange
from tidemark.kafka_log import Lineage
from tidemark.raw.packs import read_footer
from tidemark.raw.sealed_packs import Lacking, SealsAround, bounds
from tidemark.store import ObjectInfo, Store
from uploader_agent.partitions.led_partition import LedPartition
from uploader_agent.verify.segment import Severity, VerifyFinding, other_history

_AT_A_TIME = 16
"""Footers that are read at the same time: each may have thousands of ranges, and few of them are wanted."""

_MOST_RANGES = 20_000
"""Ranges that are compared at a time: some 3 KiB each."""


def compare_packs(
    partitions: Iterable[LedPartition],
    broker: int,
    pool: ThreadPoolExecutor,
    tell: Callable[[VerifyFinding], None],
    progress: Callable[[int], None],
) -> dict[TopicPartition, list[VerifyFinding]]:
    """The findings about records that the segments of surveyed ``partitions`` lack, by partition.

    The packs are those of ``broker`` and of the brokers of their replicas. ``tell`` gets findings about a pack itself,
    ``progress`` the number of packs done so far.

    Raises:
        StoreError: the store failed.
    """
    findings: dict[TopicPartition, list[VerifyFinding]] = {}
    places: dict[Endpoint, dict[PartitionOfId, LedPartition]] = {}
    for partition in partitions:
        if partition.led.topic_id is not None:
            wanted = places.setdefault(partition.uploader.where.keys.endpoint, {})
            wanted[PartitionOfId(partition.led.topic_id, partition.tp.partition)] = partition
    done = 0
    for wanted in places.values():
        cluster = next(iter(wanted.values())).uploader.where.cluster
        brokers = {broker, *(replica for partition in wanted.values() for replica in partition.local.log.replicas)}
        gathered: list[PackedRange] = []
        listed = chain.from_iterable(cluster.packs(replica) for replica in sorted(brokers))
        while packs := list(islice(listed, _AT_A_TIME)):
            for ranges in pool.map(partial(_ranges, cluster.store, wanted), packs):
                if isinstance(ranges, VerifyFinding):
                    tell(ranges)
                else:
                    gathered += ranges
            if len(gathered) >= _MOST_RANGES:
                _compare(gathered, wanted, pool, findings)
                gathered.clear()
            done += len(packs)
            progress(done)
        _compare(gathered, wanted, pool, findings)
    return findings


def _ranges(
    store: Store, wanted: Mapping[PartitionOfId, LedPartition], info: ObjectInfo
) -> list[PackedRange] | VerifyFinding:
    """The wanted ranges of a pack; none of a pack that retention has deleted in the meantime."""
    try:
        footer = read_footer(store, info.key, info.size)
    except NotFound:
        return []
    except FormatError as error:
        return VerifyFinding(Severity.CORRUPT, 0, 0, error.name, error.rule, wrong=True)
    return [packed for packed in footer if PartitionOfId(packed.range.topic_id, packed.range.partition) in wanted]


def _compare(
    gathered: Iterable[PackedRange],
    wanted: Mapping[PartitionOfId, LedPartition],
    pool: ThreadPoolExecutor,
    findings: dict[TopicPartition, list[VerifyFinding]],
) -> None:
    groups: dict[PartitionOfId, list[PackedRange]] = {}
    for packed in gathered:
        groups.setdefault(PartitionOfId(packed.range.topic_id, packed.range.partition), []).append(packed)
    partitions = [wanted[name] for name in groups]
    for partition, lacking in zip(partitions, pool.map(_lacking, partitions, groups.values()), strict=True):
        findings.setdefault(partition.tp, []).extend(lacking)


def _lacking(partition: LedPartition, ranges: list[PackedRange]) -> list[VerifyFinding]:
    written = partition.remote.log.watermark
    seals = SealsAround(partition.uploader.where, written.history if written else Lineage())
    seals.look(*bounds(packed.range for packed in ranges))
    damaged: list[VerifyFinding] = []

    def report(error: FormatError) -> None:
        damaged.append(VerifyFinding(Severity.CORRUPT, 0, 0, error.name, error.rule, wrong=True))

    lacking = [_finding(partition, segment) for segment in seals.lacking(ranges, report)]
    return [*damaged, *lacking]


def _finding(partition: LedPartition, lacking: Lacking) -> VerifyFinding:
    tp, keys = partition.tp, partition.uploader.where.keys
    first, *others = lacking.packs
    have = f"{first} and {len(others)} more packs have" if others else f"{first} has"
    key, span = keys.segment(lacking.name, "log"), (lacking.start, lacking.end)
    if lacking.other:
        detail = f"has other batches than {first}, at {lacking.batches} of them: {other_history(tp)}"
        return VerifyFinding(Severity.PARTED, *span, key, detail, wrong=True)
    cure = "see what has become of them before anything is replaced: the topic was not compacted"
    if lacking.compacted:
        add = f"`tidemark-agent reupload {tp.topic} {tp.partition} --from-packs` adds them"
        cure = f"removed by compaction before it was sealed: {add}"
    detail = f"lacks {lacking.batches} batches that {have}: {cure}"
    return VerifyFinding(Severity.LACKING, *span, key, detail, wrong=True)
