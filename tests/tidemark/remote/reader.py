"""A reader of the remote tier as tests need it, and logs whose records are known by a model."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from tests.support.raw_builder import RawBuilder
from tests.tidemark.kafka_log.build import T0, Record, batch, empty, marker
from tidemark.consumer.consumer import consumer_records
from tidemark.formats.keys import TopicPartition
from tidemark.remote.reader.blocks import Block
from tidemark.remote.reader.tier import RemoteTier
from tidemark.storage import Storage

PATIENCE = 60.0
"""Seconds after which a reader that hears nothing has failed its promise never to wait in silence."""

TP = TopicPartition("orders", 0)
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


class Expected(NamedTuple):
    """What a record must be."""

    offset: int
    key: bytes | None
    value: bytes | None


class Reader:
    """A tier and an event that is set when it has something to say; usable with ``with``."""

    def __init__(self, storage: Storage, *, committed: bool = True, **options: Any) -> None:
        self._ready = threading.Event()
        self.tier = RemoteTier(storage, committed=committed, on_ready=self._ready.set, **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.tier.close()

    def next(self, tp: TopicPartition = TP, max_rows: int | None = None) -> Block | None:
        """The next block, as soon as there is one; None at the end. Raises what the tier raises."""
        while True:
            self._ready.clear()
            block = self.tier.take(tp, max_rows)
            if block is not None:
                return block
            if self.tier.at_end(tp):
                return None
            if not self._ready.wait(PATIENCE):
                raise TimeoutError(f"{tp}: nothing was heard for {PATIENCE:g} s")

    def blocks(self, tp: TopicPartition = TP, max_rows: int | None = None) -> Iterator[Block]:
        """All up to the end."""
        while (block := self.next(tp, max_rows)) is not None:
            yield block

    def read(self, offset: int, tp: TopicPartition = TP, *, max_rows: int | None = None) -> list[Any]:
        """The records from ``offset`` to the end; that blocks join up is checked on the way."""
        self.tier.read(tp, offset)
        found: list[Any] = []
        for block in self.blocks(tp, max_rows):
            assert block.start == offset
            assert block.next_offset > offset
            assert max_rows is None or len(block.rows) <= max_rows
            offset = block.next_offset
            found += records_of(block, tp)
        return found


def records_of(block: Block, tp: TopicPartition = TP) -> list[Any]:
    """A block's records, as kafka-python has them."""
    return consumer_records(block.rows, tp.topic)


def shape(records: list[Any]) -> list[Expected]:
    """What of the records the model knows."""
    return [Expected(one.offset, one.key, one.value) for one in records]


@dataclass
class Log:
    """A partition's log that grows by chance: batches, and the records that readers of it must see.

    ``committed`` are those that read_committed sees once all transactions have ended. A record's timestamp is at most
    ``disorder`` ms older than that of a record before it.
    """

    rng: random.Random
    codecs: tuple[str, ...] = CODECS
    transactions: bool = False
    holes: bool = False
    value_bytes: int = 40
    disorder: int = 0
    end: int = 0
    all: list[Expected] = field(default_factory=list)
    committed: list[Expected] = field(default_factory=list)
    _open: dict[int, list[Expected]] = field(default_factory=dict)
    _firsts: dict[int, int] = field(default_factory=dict)

    def segment(self, batches: int) -> tuple[bytes, list[tuple[int, int, int]]]:
        """The bytes of some batches more, and the aborted transactions (producer, first, last) that end in them."""
        parts: list[bytes] = []
        aborted: list[tuple[int, int, int]] = []
        for _ in range(batches):
            if self._open and self.rng.random() < 0.3:
                parts.append(self._end_one(aborted))
            elif self.holes and self.rng.random() < 0.2:
                delta = self.rng.randrange(5)
                parts.append(empty(self.end, delta))
                self.end += delta + 1
            else:
                parts.append(self._data())
        return b"".join(parts), aborted

    def finish(self) -> tuple[bytes, list[tuple[int, int, int]]]:
        """Markers for all that is open."""
        aborted: list[tuple[int, int, int]] = []
        return b"".join([self._end_one(aborted) for _ in range(len(self._open))]), aborted

    def _data(self) -> bytes:
        count = self.rng.randint(1, 12)
        deltas = [delta for delta in range(count) if not (self.holes and self.rng.random() < 0.3)] or [0]
        records = [self._record(delta) for delta in deltas]
        expected = [Expected(self.end + one.delta, one.key, one.value) for one in records]
        fields: dict[str, int] = {"last_offset_delta": count - 1}
        if self.transactions and self.rng.random() < 0.6:
            producer = self.rng.randrange(4)
            self._firsts.setdefault(producer, self.end)
            self._open.setdefault(producer, []).extend(expected)
            fields |= {"attributes": 0x10, "producer_id": producer, "producer_epoch": 0, "base_sequence": 0}
        else:
            self.committed += expected
        raw = batch(self.end, records, self.rng.choice(self.codecs), **fields)
        self.all += expected
        self.end += count
        return raw

    def _record(self, delta: int) -> Record:
        key = None if self.rng.random() < 0.2 else b"key-%d" % (self.end + delta)
        value = None if self.rng.random() < 0.1 else self.rng.randbytes(self.rng.randrange(self.value_bytes))
        headers = [("h", None), ("ä", b"x")] if self.rng.random() < 0.2 else []
        behind = self.rng.randint(0, self.disorder) if self.disorder else 0
        return Record(delta, T0 + self.end + delta - behind, key, value, headers)

    def _end_one(self, aborted: list[tuple[int, int, int]]) -> bytes:
        producer = self.rng.choice(sorted(self._open))
        commit = self.rng.random() < 0.5
        records, first = self._open.pop(producer), self._firsts.pop(producer)
        if commit:
            self.committed = sorted(self.committed + records)
        else:
            aborted.append((producer, first, self.end))
        raw = marker(self.end, producer, commit=commit)
        self.end += 1
        return raw


def stored(log: Log, raw: RawBuilder, segments: int, batches: int = 30, *, compacted: bool = False) -> None:
    """Store that many segments of ``log``, the last with all markers that are missing, and publish."""
    for number in range(segments):
        data, aborted = log.segment(batches)
        if number == segments - 1:
            rest, ended = log.finish()
            data, aborted = data + rest, aborted + ended
        raw.segment(data, aborted=aborted, compacted=compacted, next_offset=log.end if compacted else None)
    raw.publish()
