"""The sending of records to the target with kafka-python's idempotent producer, and a check of each record's offset.

Promises: the records of a partition arrive in the order in which they were given (KIP-679: idempotent, acks=all, at
most 5 requests in flight). :meth:`Sender.flush` returns only when all are acknowledged, at successive offsets. Any
failure stops the restore. A failed record is not sent again here: the resumed restore reads from the target which
records have arrived.

Relies on how kafka-python 3.0 treats a list of headers, see :class:`_Headers`: a test with real brokers covers it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

from kafka import KafkaProducer
from kafka.errors import KafkaError, KafkaTimeoutError, MessageSizeTooLargeError
from kafka.serializer import Serializer
from typing_extensions import override

from tidemark.errors import ForeignRecords, RestoreError
from tidemark.restore.progress import RestoreProgress
from tidemark.restore.records import Record
from tidemark.restore.target import Target

Codec = Literal["none", "gzip", "lz4", "zstd"]

_BATCH_BYTES: Final = 256 << 10
_LARGEST: Final = 64 << 20  # of a request, and so of a record: the target's max.message.bytes decides
_CLOSE_SECONDS: Final = 5.0
_NOTHING: Final = b""


class _Headers(list[tuple[str, Any]]):
    """Headers with null values, which ``send`` refuses although the format has them.

    The producer checks that values are bytes, then calls the serializers with the list, and later adds up the sizes of
    its items if it counts as true. So the serializer adds the nulls, and the list counts as false.
    """

    def __init__(self, headers: Iterable[tuple[str, bytes | None]]) -> None:
        self._kept = list(headers)
        super().__init__((key, _NOTHING) for key, _ in self._kept)

    def __bool__(self) -> bool:
        return False

    def reveal(self) -> None:
        """Put the nulls in."""
        self[:] = self._kept


_NULL: Final = object()
"""A null key: the producer refuses records that have neither key nor value, and Kafka does not."""


class _Serializer(Serializer):  # type: ignore[misc]  # kafka-python has no types
    @override
    def serialize(self, topic: str, headers: list[tuple[str, bytes]], data: object) -> object:
        if isinstance(headers, _Headers):
            headers.reveal()
        return None if data is _NULL else data


class Sender:
    """Sends to ``target``. If ``shared``, other programs may write as well, so offsets do not detect them."""

    def __init__(self, target: Target, *, transactional: bool, shared: bool, codec: Codec) -> None:
        """Connect; a transactional sender first fences an earlier sender of its name, and ends its open transaction."""
        self._target = target
        self._transactional = transactional
        self._shared = shared
        self._open = False
        self._sent: dict[int, list[tuple[int, Any]]] = {}
        self._expected: dict[int, int] = {}
        names = {"transactional_id": target.group} if transactional else {}
        self._producer = KafkaProducer(
            **target.client,
            **names,
            enable_idempotence=True,
            acks="all",
            compression_type=None if codec == "none" else codec,
            batch_size=min(_BATCH_BYTES, target.largest_batch),  # kafka-python's flush fails where a batch is split
            linger_ms=20,
            max_request_size=_LARGEST,
            key_serializer=_Serializer(),
            allow_auto_create_topics=False,
        )
        if transactional:
            self._producer.init_transactions()

    def expect(self, partition: int, offset: int) -> None:
        """Set the ``offset`` in the target of the partition's next record."""
        self._expected[partition] = offset

    def send(self, partition: int, records: Iterable[Record], offsets: Iterable[int]) -> None:
        """Begin to send records, which the source has at ``offsets``.

        Raises kafka-python's errors, also for earlier records, and :class:`RestoreError` for a record that is too large
        for any request.
        """
        if self._transactional:
            self._begin()
        sent = self._sent.setdefault(partition, [])
        for (key, value, headers, timestamp), offset in zip(records, offsets, strict=True):
            nulls = any(header is None for _, header in headers)
            try:
                future = self._producer.send(
                    self._target.topic,
                    value,
                    _NULL if key is None else key,
                    headers=_Headers(headers) if nulls else headers,
                    partition=partition,
                    timestamp_ms=timestamp,
                )
            except MessageSizeTooLargeError as error:
                raise self._refused(partition, offset, error) from error
            sent.append((offset, future))

    def next_offset(self, partition: int) -> int:
        """The offset of the target that the partition's next record gets."""
        return self._expected[partition]

    def flush(self) -> None:
        """Wait until all records are acknowledged.

        Raises:
            ForeignRecords: a record did not get the offset after the one before.
            RestoreError: the brokers refused a record, or did not acknowledge it in time.
        """
        self._producer.flush()
        for partition, sent in self._sent.items():
            for offset, future in sent:
                try:
                    acknowledged = future.get().offset
                except KafkaError as error:
                    raise self._refused(partition, offset, error) from error
                self._check(partition, acknowledged)

    def commit(self, progress: Mapping[int, RestoreProgress]) -> None:
        """Commit ``progress`` after :meth:`flush`: in the transaction with the records, or on its own."""
        if not self._transactional:
            self._target.save(progress)
        else:
            self._begin()
            self._producer.send_offsets_to_transaction(self._target.offsets(progress), self._target.group)
            self._producer.commit_transaction()
            self._open = False
            for partition in self._sent:
                self._expected[partition] += 1  # the marker of the commit
        self._sent.clear()

    def close(self) -> None:
        """Give up unacknowledged records. The next sender of this name, or a timeout, aborts an open transaction."""
        try:
            self._producer.close(timeout=_CLOSE_SECONDS)
        except KafkaTimeoutError:
            return  # the error that ended the restore is raised; the next run finds the records that have arrived

    def _refused(self, partition: int, offset: int, error: KafkaError) -> RestoreError:
        place = f"{self._target.topic}-{partition}: the record at offset {offset} of the source"
        return RestoreError(f"{place} was refused ({error}); have the target accept it, and run the restore again")

    def _begin(self) -> None:
        if not self._open:
            self._producer.begin_transaction()
            self._open = True

    def _check(self, partition: int, offset: int) -> None:
        expected = self._expected[partition]
        if offset != expected and not self._shared:
            observation = f"a restored record got the offset {offset}: another program writes to the target. {FOREIGN}"
            raise ForeignRecords(self._target.topic, partition, expected, observation)
        self._expected[partition] = offset + 1


FOREIGN: Final = (
    "Restore into a separate topic; or stop the other writers, delete the target's records and start again. "
    "With --transactional --append others may write"
)
