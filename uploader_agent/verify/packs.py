"""The packs that still exist against the segments that have replaced them, whether a head still leads to them or not.

Memory is bounded by the ranges that are compared at a time, and time by the packs of the brokers that have replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import NamedTuple

from tidemark.errors import FormatError, NotFound
from tidemark.formats.keys import ControlKeys, Endpoint, TopicPartition
from tidemark.formats.pack import PackedRange, read_footer
from tidemark.kafka_log import Lineage
from tidemark.raw.sealed_packs import Lacking, SealsAround, bounds
from tidemark.store import ObjectInfo, Store
from uploader_agent.partitions.led_partition import LedPartition
from uploader_agent.verify.findings import Severity, VerifyFinding

_AT_A_TIME = 16
"""Packs whose footers are read at the same time: each may have thousands of ranges, of which few are wanted."""

_MOST_RANGES = 20_000
"""Ranges that are compared at a time: some 3 KiB each."""


class _Id(NamedTuple):
    """A partition as packs name it."""

    topic_id: str
    partition: int


def compare_packs(
    partitions: Iterable[LedPartition],
    broker: int,
    pool: ThreadPoolExecutor,
    tell: Callable[[VerifyFinding], None],
    progress: Callable[[int], None],
) -> dict[TopicPartition, list[VerifyFinding]]:
    """What the segments of surveyed ``partitions`` lack that packs of ``broker`` and of their replicas' brokers have.

    ``tell`` gets what is wrong with a pack itself, ``progress`` the number of packs done so far.

    Raises:
        StoreError: the store failed.
    """
    found: dict[TopicPartition, list[VerifyFinding]] = {}
    places: dict[Endpoint, dict[_Id, LedPartition]] = {}
    for one in partitions:
        if one.led.topic_id is not None:
            wanted = places.setdefault(one.uploader.where[1].endpoint, {})
            wanted[_Id(one.led.topic_id, one.tp.partition)] = one
    done = 0
    for wanted in places.values():
        store, keys = next(iter(wanted.values())).uploader.where
        brokers = {broker, *(replica for one in wanted.values() for replica in one.uploader.replicas)}
        gathered: list[PackedRange] = []
        listed = _listed(store, keys.control, brokers)
        while packs := list(islice(listed, _AT_A_TIME)):
            for ranges in pool.map(partial(_ranges, store, wanted), packs):
                if isinstance(ranges, VerifyFinding):
                    tell(ranges)
                else:
                    gathered += ranges
            if len(gathered) >= _MOST_RANGES:
                _compare(gathered, wanted, pool, found)
                gathered.clear()
            done += len(packs)
            progress(done)
        _compare(gathered, wanted, pool, found)
    return found


def _listed(store: Store, control: ControlKeys, brokers: Iterable[int]) -> Iterator[ObjectInfo]:
    for broker in sorted(brokers):
        yield from (info for info in store.list(control.packs(broker)) if control.pack_of(info.key) is not None)


def _ranges(store: Store, wanted: Mapping[_Id, LedPartition], info: ObjectInfo) -> list[PackedRange] | VerifyFinding:
    """The wanted ranges of a pack; none of one that retention has deleted meanwhile."""
    try:
        found = read_footer(store, info.key, info.size)
    except NotFound:
        return []
    except FormatError as error:
        return VerifyFinding(Severity.CORRUPT, 0, 0, error.name, error.rule, wrong=True)
    return [one for one in found if _Id(one.range.topic_id, one.range.partition) in wanted]


def _compare(
    gathered: Iterable[PackedRange],
    wanted: Mapping[_Id, LedPartition],
    pool: ThreadPoolExecutor,
    found: dict[TopicPartition, list[VerifyFinding]],
) -> None:
    groups: dict[_Id, list[PackedRange]] = {}
    for one in gathered:
        groups.setdefault(_Id(one.range.topic_id, one.range.partition), []).append(one)
    partitions = [wanted[name] for name in groups]
    for partition, findings in zip(partitions, pool.map(_lacking, partitions, groups.values()), strict=True):
        found.setdefault(partition.tp, []).extend(findings)


def _lacking(partition: LedPartition, ranges: list[PackedRange]) -> list[VerifyFinding]:
    store, keys = partition.uploader.where
    written = partition.remote.watermark
    seals = SealsAround(store, keys, Lineage(written.lineage) if written else Lineage())
    seals.look(*bounds(one.range for one in ranges))
    damaged: list[VerifyFinding] = []

    def tell(error: FormatError) -> None:
        damaged.append(VerifyFinding(Severity.CORRUPT, 0, 0, error.name, error.rule, wrong=True))

    lacking = [_finding(partition, one) for one in seals.lacking(ranges, tell)]
    return [*damaged, *lacking]


def _finding(partition: LedPartition, one: Lacking) -> VerifyFinding:
    tp, keys = partition.tp, partition.uploader.where[1]
    packs = one.packs[0] if len(one.packs) == 1 else f"{one.packs[0]} and {len(one.packs) - 1} more packs have"
    have = f"{packs} has" if len(one.packs) == 1 else packs
    cure = f"`tidemark-agent reupload {tp.topic} {tp.partition} --from-packs` adds them"
    detail = f"lacks {one.batches} batches that {have}, removed by compaction before it was sealed: {cure}"
    return VerifyFinding(Severity.LACKING, one.start, one.end, keys.segment(one.name, "log"), detail, wrong=True)
