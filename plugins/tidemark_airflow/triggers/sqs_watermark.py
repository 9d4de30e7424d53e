"""The other way to learn of new watermarks: S3's notifications in an SQS queue, which cost by what changes alone.

A message is a doorbell. What it names is read, and laid over what the brokers' indexes said last; then the topics'
triggers judge as ever. It is deleted once every trigger that waited has gone past it and each event that came of it is
stored: Airflow's acknowledgement mode of shared streams. Until then it stays SQS's, and comes again if the triggerer
dies; to read a watermark twice does no harm. Notifications can be lost, so the indexes are still read whole: at the
start, every ``sweep``, and while the queue does not answer as often as without one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from airflow.triggers.shared_stream import AdvanceItem, SharedStreamProducer

from tidemark.endpoints import resolver_of
from tidemark.errors import FormatError, NotFound, TidemarkError
from tidemark.formats import watermark
from tidemark.formats.base import Part
from tidemark.formats.incarnations import TopicIncarnations
from tidemark.formats.keys import ControlKeys
from tidemark.store import Store, open_store
from tidemark.timestamps import utc_now
from tidemark.topics import Deployment
from tidemark_airflow.triggers.index_scanner import IndexScanner, Scan, Source
from tidemark_airflow.triggers.readiness import Baseline, Row
from tidemark_airflow.triggers.s3_events import Rung, Written, watermark_of, written
from tidemark_airflow.triggers.scan_overlay import Overlay
from tidemark_airflow.triggers.sqs_queue import Message, Queue, QueueFailed
from tidemark_airflow.triggers.watermark import WatermarkTrigger, spare_collector

_READERS = 8
_LONGEST_PAUSE = 60.0

log = logging.getLogger(__name__)


class Bell(Part):
    """Where a cluster's notifications come in, and what they may name.

    ``stores`` are those that its segments go to, ``control`` and ``prefix`` where its ``_…`` objects lie. The queue is
    asked for ``seconds`` at a time.
    """

    queue: str
    cluster: str
    control: str
    prefix: str
    stores: tuple[str, ...]
    seconds: float

    @classmethod
    def of(cls, deployment: Deployment, cluster: str, queue: str, seconds: float) -> Bell:
        """That of ``cluster``."""
        resolver = resolver_of(deployment.raw)
        default = resolver.default()
        topics = [one.topic for one in deployment.topics if one.cluster == cluster]
        stores = {default.store, *(resolver.resolve(cluster, topic, 0).store for topic in topics)}
        return cls(
            queue=queue,
            cluster=cluster,
            control=default.store,
            prefix=default.prefix,
            stores=tuple(sorted(stores)),
            seconds=seconds,
        )


class _Read(NamedTuple):
    """What came of an object: a watermark's row, or nothing that matters; not done, if it must be looked at again."""

    row: Row | None = None
    done: bool = True


class Listener:
    """Waits at one queue, reads what it is told of, and keeps what is known of all topics. Blocks: for a thread."""

    def __init__(self, source: Source, bell: Bell) -> None:
        """Opens stores and queue, which imports their clients."""
        self._bell = bell
        self._scanner = IndexScanner(source)
        self._stores: dict[str, Store] = {url: open_store(url, source.options) for url in (*bell.stores, bell.control)}
        self._incarnations: dict[Rung, int] = {}
        self._overlay = Overlay()
        self._sweep = timedelta(seconds=source.seconds)
        self._swept: datetime | None = None
        self._failures = 0
        self.queue = Queue(bell.queue, source.options.region)

    @property
    def pause(self) -> float:
        """Seconds until the next :meth:`look`: none, unless the queue did not answer."""
        return min(_LONGEST_PAUSE, self._bell.seconds * 2.0**self._failures) if self._failures else 0.0

    def look(self) -> tuple[Scan, list[str]]:
        """What is known after the next messages, or after some seconds without any; and the receipts of those."""
        messages: list[Message] = []
        if self._swept is not None:
            messages = self._received()
        found, receipts = self._read(messages)
        self._overlay.add(one.row for one in found if one.row is not None)
        if self._is_due():
            scan = self._scanner.scan()
            self._overlay.rest_on(scan)
            self._swept = None if scan.failing_since else utc_now()
        return self._overlay.scan(), receipts

    def _is_due(self) -> bool:
        return self._failures > 0 or self._swept is None or utc_now() - self._swept >= self._sweep

    def _received(self) -> list[Message]:
        try:
            found = self.queue.receive(self._bell.seconds)
        except QueueFailed:
            self._failures += 1
            log.warning("%s: not read, %d times in a row", self._bell.queue, self._failures, exc_info=True)
            return []
        self._failures = 0
        return found

    def _read(self, messages: Sequence[Message]) -> tuple[list[_Read], list[str]]:
        """What the messages name, and the receipts of those of which all could be read.

        A message of another kind is logged and then as good as read: it would only come again.
        """
        named: dict[str, list[Written]] = {}
        for message in messages:
            try:
                named[message.receipt] = written(message.body)
            except ValueError as error:
                log.warning("%s: message %s is dropped: %s", self._bell.queue, message.id, error)
                named[message.receipt] = []
        objects = list(dict.fromkeys(one for several in named.values() for one in several))
        with ThreadPoolExecutor(_READERS) as readers:
            found = dict(zip(objects, readers.map(self._look_at, objects), strict=True))
        done = [receipt for receipt, several in named.items() if all(found[one].done for one in several)]
        return list(found.values()), done

    def _look_at(self, at: Written) -> _Read:
        store, rung = f"s3://{at.bucket}", watermark_of(at.key, self._bell.cluster)
        if store not in self._bell.stores or rung is None:
            return _Read()
        try:
            body = self._stores[store].get(at.key, limit=watermark.Watermark.most_bytes).body
            _, said = watermark.parse(body, at.key)
            incarnation = self._incarnation(rung)
        except NotFound:
            return _Read()
        except FormatError:
            log.exception("a watermark does not parse; what the index says still counts")
            return _Read()
        except (TidemarkError, OSError):
            log.warning("%s: not read; its notification comes again", at.key, exc_info=True)
            return _Read(done=False)
        if said is None or incarnation is None:
            return _Read()
        return _Read((*rung.at, incarnation, said.leader_epoch, said.next_offset, None, said.written_at))

    def _incarnation(self, rung: Rung) -> int | None:
        """Its number: only the first one's keys are without a topic id."""
        if rung.topic_id is None:
            return 0
        if rung not in self._incarnations:
            key = ControlKeys(self._bell.prefix, self._bell.cluster).incarnations(rung.at.topic)
            lives = TopicIncarnations.load(self._stores[self._bell.control], key)
            if (found := lives.find(rung.topic_id)) is None:
                return None
            self._incarnations[rung] = found[0]
        return self._incarnations[rung]


class NotificationProducer(SharedStreamProducer):
    """Scans, as those of the indexes alone, each with the receipts of the messages that led to it."""

    def __init__(self, source: Source, bell: Bell) -> None:
        self._source, self._bell = source, bell
        self._listener: Listener | None = None

    async def open_stream(self) -> AsyncIterator[tuple[Scan, list[str]]]:
        """For ever."""
        self._listener = await asyncio.to_thread(Listener, self._source, self._bell)
        spare_collector()
        while True:
            yield await asyncio.to_thread(self._listener.look)
            await asyncio.sleep(self._listener.pause)

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Delete the messages that all have gone past; the others come again. Where SQS fails, they do too."""
        receipts = [receipt for item in batch if item.outcome.is_clean for receipt in item.broker_payload]
        if receipts and self._listener is not None:
            try:
                await asyncio.to_thread(self._listener.queue.delete, receipts)
            except QueueFailed:
                log.warning("%s: not deleted, and so read again", self._bell.queue, exc_info=True)


class NotificationTrigger(WatermarkTrigger):
    """As :class:`tidemark_airflow.triggers.watermark.WatermarkTrigger`, told by notifications.

    :param bell: where they come in, a dumped :class:`Bell`
    """

    def __init__(self, *, source: dict[str, Any], baseline: dict[str, Any], bell: dict[str, Any]) -> None:
        super().__init__(source=source, baseline=baseline)
        self.bell = Bell.model_validate(bell)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path and arguments, all of JSON's types."""
        path, kwargs = super().serialize()
        return path, {**kwargs, "bell": self.bell.model_dump(mode="json")}

    def shared_stream_key(self) -> Hashable | None:
        """Equal for all topics of a cluster."""
        return "tidemark-notifications", self.source.model_dump_json(), self.bell.model_dump_json()

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> NotificationProducer:
        """Puts the stream into acknowledgement mode."""
        return NotificationProducer(Source.model_validate(kwargs["source"]), Bell.model_validate(kwargs["bell"]))

    @classmethod
    async def open_shared_stream(cls, kwargs: dict[str, Any]) -> AsyncIterator[Scan]:
        """The scans alone, where no triggerer shares them: no message is deleted, and the queue gives them again."""
        async for scan, _ in cls.create_shared_stream_producer(kwargs).open_stream():
            yield scan


def trigger_of(deployment: Deployment, cluster: str, seconds: float, baseline: Baseline) -> WatermarkTrigger:
    """The trigger of a topic of ``cluster``: by notifications where the topics file names a queue, else by scans."""
    told = deployment.notifications
    given = baseline.model_dump(mode="json")
    if told is None:
        return WatermarkTrigger(source=Source.of(deployment, cluster, seconds).model_dump(mode="json"), baseline=given)
    return NotificationTrigger(
        source=Source.of(deployment, cluster, told.sweep.total_seconds()).model_dump(mode="json"),
        baseline=given,
        bell=Bell.of(deployment, cluster, told.queue(cluster), seconds).model_dump(mode="json"),
    )
