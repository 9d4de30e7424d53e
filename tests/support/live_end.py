"""Packs and heads beside a raw store made by hand, as the agent's packer writes them.

A :class:`Packer` is one broker: it packs runs of batches of the partitions of a :class:`RawBuilder`, and puts its head.
``PartitionRaw.tails`` are what ``offset.wm`` lists when it is next published.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tests.support.raw_builder import RawBuilder
from tidemark.formats.keys import ControlKeys, PackName
from tidemark.formats.raw import head as heads
from tidemark.formats.raw.head import Head, HeadEntry
from tidemark.formats.raw.manifest import PackedPart
from tidemark.formats.raw.pack import Pack, RangeContent, RangePointer
from tidemark.kafka_log import OpenTransaction, carry_forward, scan_batches


@dataclass
class Tail:
    """What a broker has packed of a partition under one epoch. ``open`` are the transactions open at its end."""

    epoch: int
    end: int
    last: RangePointer | None = None
    open: tuple[OpenTransaction, ...] = ()


@dataclass(frozen=True)
class Packed:
    """A range that was packed: the key of its pack, and what a seal lists of it."""

    key: str
    part: PackedPart


class Packer:
    """One broker's agent, as far as it packs."""

    def __init__(self, raw: RawBuilder, broker: int = 1, prefix: str = "") -> None:
        self.raw, self.broker = raw, broker
        self.control = ControlKeys(prefix, raw.cluster)
        self.entries: dict[tuple[int, int], HeadEntry] = {}
        self._tails: dict[tuple[int, int], Tail] = {}
        self.packs = 0

    def pack(
        self,
        data: bytes | Sequence[bytes],
        partition: int = 0,
        *,
        first: int | None = None,
        aborted: Iterable[tuple[int, int, int]] = (),
        compacted: bool = False,
        high_watermark: int | None = None,
        observed_at: datetime | None = None,
        shipped_at: datetime | None = None,
        opened: Iterable[OpenTransaction] | None = None,
        head: bool = True,
    ) -> Packed:
        """Pack batches of a partition under its present leadership, and put the head unless told not to.

        A range goes on where the last one of this leadership ended, or where the seals end; ``first`` says another
        start, ``opened`` what is open there.
        """
        [packed] = self.pack_all([(data, partition, first, aborted, compacted, shipped_at, opened)])
        self._note(partition, high_watermark, observed_at)
        if head:
            self.put_head()
        return packed

    def pack_all(self, ranges: Iterable[tuple[Any, ...]]) -> list[Packed]:
        """Several ranges in one pack; each is what :meth:`pack` takes, by position. No head is put."""
        self.packs += 1
        name = PackName(self.broker, f"{self.broker:016x}{self.packs:016x}")
        pack = Pack(name)
        tails: list[tuple[tuple[int, int], Tail]] = []
        for one in ranges:
            content, log, found = self._content(*one)
            assert pack.add(content, log)
            tails.append(found)
        key = self.control.pack(name)
        self.raw.store.put(key, pack.body, if_none_match=True)
        for written, (at, tail) in zip(pack.ranges, tails, strict=True):
            tail.last = written.pointer
            self._tails[at] = tail
        return [Packed(key, one.part) for one in pack.ranges]

    def drop(self, partition: int = 0, epoch: int | None = None) -> None:
        """Forget what is packed of a partition, under an epoch or the present one: it is sealed. Put the head."""
        epoch = self.raw.partition(partition).leader_epoch if epoch is None else epoch
        self.entries.pop((partition, epoch), None)
        self._tails.pop((partition, epoch), None)
        self.put_head()

    def put_head(self) -> None:
        """Write the head as it is now."""
        made = Head(
            cluster=self.raw.cluster,
            broker=self.broker,
            agent="test",
            written_at=self.raw.now,
            entries=tuple(self.entries[key] for key in sorted(self.entries)),
        )
        self.raw.store.put(*heads.render(made, self.control))

    def _content(
        self,
        data: bytes | Sequence[bytes],
        partition: int,
        first: int | None,
        aborted: Iterable[tuple[int, int, int]],
        compacted: bool,
        shipped_at: datetime | None,
        opened: Iterable[OpenTransaction] | None,
    ) -> tuple[RangeContent, bytes, tuple[tuple[int, int], Tail]]:
        log = data if isinstance(data, bytes) else b"".join(data)
        known = self.raw.partition(partition)
        at = partition, known.leader_epoch
        before = self._tails.get(at)
        before_open = known.open_transactions if opened is None else opened
        tail = before or Tail(
            known.leader_epoch,
            known.end,
            open=tuple(before_open),
        )
        start = tail.end if first is None else first
        headers = list(scan_batches([log], "packed", 0))
        open_now = carry_forward(tail.open, headers)
        epochs: list[tuple[int, int]] = []
        for one in headers:
            if not epochs or epochs[-1][0] != one.leader_epoch:
                epochs.append((one.leader_epoch, one.base_offset))
        content = RangeContent.model_validate(
            {
                "topic": self.raw.topic,
                "topic_id": self.raw.lives.incarnations[-1].topic_id,
                "partition": partition,
                "first": start,
                "next": headers[-1].next_offset,
                "epochs": epochs,
                "leader_epoch": known.leader_epoch,
                "open": open_now,
                "aborts": [{"producer_id": one[0], "first_offset": one[1], "last_offset": one[2]} for one in aborted],
                "max_timestamp": max(one.max_timestamp for one in headers),
                "compacted": compacted,
                "shipped_at": shipped_at or self.raw.now,
                "previous": tail.last if before else None,
            }
        )
        return content, log, (at, Tail(known.leader_epoch, content.next, None, open_now))

    def _note(self, partition: int, high_watermark: int | None, observed_at: datetime | None) -> None:
        """Take the partition's tail into the head."""
        known = self.raw.partition(partition)
        tail = self._tails[partition, known.leader_epoch]
        assert tail.last is not None
        self.entries[partition, known.leader_epoch] = HeadEntry(
            topic=self.raw.topic,
            topic_id=self.raw.lives.incarnations[-1].topic_id or "",
            partition=partition,
            epoch=known.leader_epoch,
            lineage=known.lineage,
            tail_end=tail.end,
            last=tail.last,
            high_watermark=tail.end if high_watermark is None else high_watermark,
            observed_at=observed_at or self.raw.observed_at,
            oldest_unstored=0.0,
        )
        if (pair := (known.leader_epoch, self.broker)) not in known.tails:
            known.tails = (*known.tails, pair)
        known.tail_end = tail.end
