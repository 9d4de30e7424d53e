"""The results of ``poll`` and ``poll_arrow``."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any, Final

import pyarrow as pa
from kafka.consumer.fetcher import ConsumerRecord
from typing_extensions import override

from tidemark.consumer.fetcher import Want
from tidemark.formats.keys import TopicPartition
from tidemark.remote.reader.blocks import Block
from tidemark.remote.reader.consumer_records import Deserializer, consumer_records

_MAKE: Final = partial(tuple.__new__, ConsumerRecord)


class PolledRecords(Want):
    """Lists of kafka-python's ``ConsumerRecord``, of at most ``most`` records together."""

    def __init__(self, most: int, key: Deserializer | None, value: Deserializer | None) -> None:
        self._left = most
        self._key = key
        self._value = value
        self._made: dict[TopicPartition, list[Any]] = {}

    @override
    def rows(self, block: Block | None) -> int:
        return self._left

    @override
    def take(self, tp: TopicPartition, block: Block) -> int:
        count = block.rows.num_rows
        made: list[Any] = consumer_records(
            block.rows, tp.topic, 0, count, _MAKE, key_deserializer=self._key, value_deserializer=self._value
        )
        if tp in self._made:
            self._made[tp] += made
        else:
            self._made[tp] = made
        self._left -= len(made)
        return len(made)

    @override
    def result(self) -> dict[TopicPartition, list[Any]]:
        return self._made


class Arrow(Want):
    """One Arrow record batch for each partition, of about ``most`` bytes together, and at least one row."""

    def __init__(self, most: int) -> None:
        self._left = most
        self._made: dict[TopicPartition, pa.RecordBatch] = {}

    @override
    def rows(self, block: Block | None) -> int:
        if self._left <= 0:
            return 0
        if block is None:
            return sys.maxsize
        size = block.rows.nbytes
        return block.rows.num_rows if size <= self._left else max(1, self._left * block.rows.num_rows // size)

    @override
    def take(self, tp: TopicPartition, block: Block) -> int:
        rows = block.rows.replace_schema_metadata(None)
        self._left -= rows.nbytes
        if tp in self._made:
            both = pa.concat_batches([self._made[tp], rows])  # type: ignore[attr-defined]  # not in the stubs
            self._made[tp] = both
        else:
            self._made[tp] = rows
        return rows.num_rows

    @override
    def result(self) -> dict[TopicPartition, pa.RecordBatch]:
        return self._made
