"""Packs and heads of a topic as agents write them, beside the seals that a :class:`RawBuilder` makes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.support.raw_builder import RawBuilder
from tidemark.formats.keys import ControlKeys
from tidemark.formats.raw import head
from tidemark.formats.raw.head import Head, HeadEntry
from tidemark.formats.raw.manifest import LineagePairs
from tidemark.formats.raw.pack import RangeContent, RangePointer, build
from tidemark.kafka_log import AbortedTransaction, OpenTransaction, SegmentScanner


@dataclass
class Chain:
    """What one leadership has packed of a partition."""

    lineage: LineagePairs
    end: int
    last: RangePointer | None = None
    packs: list[tuple[str, int]] = field(default_factory=list)
    """Key and end of each."""
    opened: tuple[OpenTransaction, ...] = ()
    listed: bool = True
    """Whether the head has an entry for it."""


class ChainKey(NamedTuple):
    """A leadership of a partition of an incarnation."""

    incarnation: int
    partition: int
    epoch: int


@dataclass
class Range:
    """Batches to pack; ``first`` defaults to where the chain ends.

    ``aborted`` has (producer id, first offset, last offset) of the markers among them.
    """

    data: Sequence[bytes]
    partition: int = 0
    first: int | None = None
    aborted: Iterable[tuple[int, int, int]] = ()
    compacted: bool = False


class Packing:
    """The agent of ``broker``, which packs what it leads of the topic of ``raw``."""

    def __init__(self, raw: RawBuilder, broker: int = 5) -> None:
        self.raw, self.broker = raw, broker
        self.control = ControlKeys(raw.keys().endpoint.prefix, raw.cluster)
        self.chains: dict[ChainKey, Chain] = {}

    def lead(
        self,
        partition: int = 0,
        *,
        lineage: LineagePairs | None = None,
        end: int | None = None,
        opened: Iterable[OpenTransaction] | None = None,
        incarnation: int | None = None,
    ) -> Chain:
        """Claim a partition: ``offset.wm`` names the leadership when it is published next.

        ``lineage`` defaults to the partition's, ``end`` to where its seals end, ``opened`` to what is open there.
        """
        number = len(self.raw.lives.incarnations) - 1 if incarnation is None else incarnation
        known = self.raw.partition(partition, number)
        known.lineage = lineage or known.lineage
        epoch = known.leader_epoch = known.lineage[-1][0]
        known.tails = (*known.tails, (epoch, self.broker))
        if opened is None:
            opened = known.open_transactions
        chain = Chain(known.lineage, known.end if end is None else end, opened=tuple(opened))
        self.chains[ChainKey(number, partition, epoch)] = chain
        return chain

    def pack(self, *ranges: Range, put_head: bool = True) -> str:
        """One pack with these ranges, and the head; returns the pack's key."""
        contents = [self._content(one) for one in ranges]
        bodies = [b"".join(one.data) for one in ranges]
        [built] = build(self.broker, zip(contents, bodies, strict=True))
        key = self.control.pack(built.name)
        self.raw.store.put(key, built.body, if_none_match=True)
        for content, written in zip(contents, built.ranges, strict=True):
            chain = self.chain(content.partition)
            chain.last, chain.end = written.pointer, written.part.next
            chain.packs.append((key, chain.end))
        if put_head:
            self.put_head()
        return key

    def put_head(self) -> None:
        """Put the head as it is now."""
        entries = [self._entry(key, chain) for key, chain in self.chains.items() if chain.listed and chain.last]
        found = Head(
            cluster=self.raw.cluster, broker=self.broker, agent="test", written_at=self.raw.now, entries=tuple(entries)
        )
        self.raw.store.put(*head.render(found, self.control))

    def sealed(self, partition: int = 0) -> None:
        """All that is packed of the partition is sealed: the leaderships go from ``offset.wm`` and from the head."""
        for key, chain in self.chains.items():
            if key.partition == partition:
                chain.listed = False
        self.raw.partition(partition).tails = ()
        self.put_head()

    def chain(self, partition: int = 0) -> Chain:
        """The chain of the newest leadership of a partition."""
        return self.chains[max(key for key in self.chains if key.partition == partition)]

    def _content(self, one: Range) -> RangeContent:
        key = max(key for key in self.chains if key.partition == one.partition)
        chain = self.chains[key]
        first = chain.end if one.first is None else one.first
        scanner = SegmentScanner("range", first, open_before=chain.opened)
        list(scanner.batches(b"".join(one.data)))
        summary = scanner.finish()
        chain.opened = summary.open_transactions
        return RangeContent(
            topic=self.raw.topic,
            topic_id=self._topic_id(key),
            partition=one.partition,
            first=first,
            next=summary.next_offset,
            epochs=summary.epochs,
            leader_epoch=key.epoch,
            open=summary.open_transactions,
            aborts=tuple(AbortedTransaction(producer, start, last) for producer, start, last in one.aborted),
            max_timestamp=summary.max_timestamp,
            compacted=one.compacted,
            shipped_at=self.raw.now,
            previous=chain.last,
        )

    def _entry(self, key: ChainKey, chain: Chain) -> HeadEntry:
        assert chain.last is not None
        return HeadEntry(
            topic=self.raw.topic,
            topic_id=self._topic_id(key),
            partition=key.partition,
            epoch=key.epoch,
            lineage=chain.lineage,
            tail_end=chain.end,
            last=chain.last,
            high_watermark=chain.end,
            observed_at=self.raw.now,
            oldest_unstored=0.0,
        )

    def _topic_id(self, key: ChainKey) -> str:
        topic_id = self.raw.lives.incarnations[key.incarnation].topic_id
        assert topic_id is not None
        return topic_id
