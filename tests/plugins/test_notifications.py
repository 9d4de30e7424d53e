"""S3's notifications as doorbells, over Airflow's own shared streams; moto's server stands in for SQS."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
import yaml
from airflow.triggers.shared_stream import SharedStreamManager

from tests.plugins.world import CLUSTER, LONG_AGO, TOPIC_ID, World, entry, row
from tests.support.ports import free_port
from tests.support.sqs import REGION, SqsServer
from tidemark.errors import ConfigError, UnknownOutcome
from tidemark.formats import watermark
from tidemark.formats.incarnations import Incarnation, TopicIncarnations
from tidemark.formats.keys import Endpoint, PartitionKeys, TopicPartition
from tidemark.formats.ledger import Ledger, Published
from tidemark.store import Store, StoreOptions
from tidemark.timestamps import utc_now
from tidemark_airflow.triggers import sqs_watermark
from tidemark_airflow.triggers.index_scanner import Scan, Source
from tidemark_airflow.triggers.readiness import Baseline
from tidemark_airflow.triggers.s3_events import Rung, Written, watermark_of, written
from tidemark_airflow.triggers.scan_overlay import Overlay
from tidemark_airflow.triggers.sqs_watermark import Bell, NotificationTrigger, trigger_of
from tidemark_airflow.triggers.watermark import WatermarkTrigger

if TYPE_CHECKING:
    from mypy_boto3_sqs.literals import QueueAttributeNameType

Result = TypeVar("Result")

BUCKET = "raw-bucket"
QUEUES = "https://sqs.eu-west-1.amazonaws.com/123456789012"
OTHER_ID = "BBBBBBBBBBBBBBBBBBBBBB"


def s3_event(key: str, bucket: str = BUCKET) -> dict[str, Any]:
    """As S3 writes it: keys are URL-encoded."""
    entity = {"bucket": {"name": bucket}, "object": {"key": key, "size": 512, "sequencer": "00"}}
    return {"Records": [{"eventSource": "aws:s3", "eventName": "ObjectCreated:Put", "s3": entity}]}


def eventbridge(key: str) -> dict[str, Any]:
    """As EventBridge passes it on."""
    return {"source": "aws.s3", "detail-type": "Object Created", "detail": s3_event(key)["Records"][0]["s3"]}


@pytest.mark.parametrize(
    ("body", "keys"),
    [
        pytest.param(s3_event("p/kafka-1/orders%401-0/offset.wm"), ["p/kafka-1/orders@1-0/offset.wm"], id="S3"),
        pytest.param(eventbridge("p/a+b/offset.wm"), ["p/a+b/offset.wm"], id="EventBridge"),
        pytest.param(
            {"Type": "Notification", "Message": json.dumps(s3_event("a+b"))}, ["a b"], id="S3 by SNS, a blank encoded"
        ),
        pytest.param({"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": BUCKET}, [], id="S3's test"),
        pytest.param({"Records": []}, [], id="nothing"),
    ],
)
def test_each_form_names_its_objects(body: dict[str, Any], keys: list[str]) -> None:
    assert written(json.dumps(body)) == [Written(BUCKET, key) for key in keys]


POISON = ["", "not JSON", "[]", "null", "{}", '{"Records": [{}]}', '{"Type": "Notification"}', '{"detail": 1}']


@pytest.mark.parametrize("body", POISON)
def test_what_is_no_notification_is_refused_as_that(body: str) -> None:
    with pytest.raises(ValueError, match=r"neither S3's|Expecting value"):
        written(body)


@pytest.mark.parametrize("place", ["orders", "orders-7", f"or.d_ers-7@{TOPIC_ID}"])
@pytest.mark.parametrize("endpoint", [Endpoint("s3://b"), Endpoint("s3://b", "some/prefix", 8)])
def test_a_watermarks_key_names_its_partition(place: str, endpoint: Endpoint) -> None:
    key = PartitionKeys(endpoint, CLUSTER, place, 12).watermark
    topic, _, topic_id = place.partition("@")

    assert watermark_of(key, CLUSTER) == Rung(TopicPartition(topic, 12), topic_id or None)
    assert watermark_of(key, "another") is None


@pytest.mark.parametrize("key", ["", "offset.wm", "kafka-1/offset.wm", "kafka-1/orders/offset.wm", "kafka-1/o-1/1.log"])
def test_other_keys_name_none(key: str) -> None:
    assert watermark_of(key, CLUSTER) is None


def test_newer_rows_lie_over_a_scan_until_it_knows_them() -> None:
    overlay = Overlay()
    clicks = (row("clicks", next_offset=1),)
    overlay.rest_on(Scan({"orders": (row(next_offset=5, bytes_per_offset=9.0),), "clicks": clicks}))
    overlay.add([row(next_offset=4), row(partition=1, next_offset=2), row(next_offset=7)])

    assert set(overlay.scan().topics["orders"]) == {
        row(next_offset=7, bytes_per_offset=9.0),
        row(partition=1, next_offset=2),
    }
    assert overlay.scan().topics["clicks"] is clicks

    known = (row(next_offset=7), row(partition=1, next_offset=1))
    overlay.rest_on(Scan({"orders": known, "clicks": clicks}))
    assert set(overlay.scan().topics["orders"]) == {row(next_offset=7), row(partition=1, next_offset=2)}

    known = (row(next_offset=8), row(partition=1, next_offset=2))
    overlay.rest_on(Scan({"orders": known}))
    assert overlay.scan().topics == {"orders": known}
    overlay.add([row(next_offset=1, incarnation=1)])
    assert overlay.scan().topics["orders"] == (row(next_offset=1, incarnation=1), known[1])


def test_the_topics_file_chooses(world: World) -> None:
    baseline = baseline_of(world)
    assert type(trigger_of(world.deployment, CLUSTER, 10, baseline)) is WatermarkTrigger

    settings = yaml.safe_load(world.topics_file.read_text())
    settings["notifications"] = {
        "queue_url": "https://sqs.eu-west-1.amazonaws.com/123456789012/{cluster}",
        "sweep": "2m",
    }
    world.write_topics(**settings)
    trigger = trigger_of(world.deployment, CLUSTER, 10, baseline)
    assert isinstance(trigger, NotificationTrigger)
    assert (trigger.source.seconds, trigger.bell.seconds) == (120, 10)
    assert trigger.bell.queue == f"{QUEUES}/kafka-1"
    path, kwargs = trigger.serialize()
    assert path == "tidemark_airflow.triggers.sqs_watermark.NotificationTrigger"
    assert NotificationTrigger(**kwargs).shared_stream_key() == trigger.shared_stream_key()

    settings["notifications"]["queue_url"] = f"{QUEUES}/all"
    settings["topics"].append({"topic": "other", "cluster": "kafka-2"})
    world.write_topics(**settings)
    with pytest.raises(ConfigError, match=r"must have \{cluster\} in it"):
        _ = world.deployment


def baseline_of(world: World) -> Baseline:
    settings = world.deployment.topic("orders")
    ledger = Ledger.genesis(settings.cluster, settings.topic, settings.table)
    return Baseline.of(settings, ledger, Published(at=utc_now()), utc_now())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqsServer]:
    with SqsServer(tmp_path_factory.mktemp("sqs")) as sqs:
        yield sqs


class Rings:
    """A queue of its own for a test, a bucket that is a directory, and triggers as the triggerer runs them."""

    def __init__(self, world: World, server: SqsServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world, self.client = world, server.client
        self.queue = self.client.create_queue(
            QueueName=f"q-{time.monotonic_ns()}", Attributes={"VisibilityTimeout": "1"}
        )["QueueUrl"]
        self.failure: Exception | None = None
        self.failures = 0
        monkeypatch.setattr(sqs_watermark, "open_store", self._opened)

    def _opened(self, _url: str, _options: StoreOptions) -> Store:
        return self  # type: ignore[return-value] # as much of a store as a listener uses

    def get(self, key: str, **options: Any) -> Any:
        if self.failure:
            self.failures += 1
            raise self.failure
        return self.world.raw.get(key, **options)

    def trigger(self, *, sweep: float = 600, queue: str | None = None) -> NotificationTrigger:
        bell = Bell(
            queue=queue or self.queue, cluster=CLUSTER, control="", prefix="", stores=(f"s3://{BUCKET}",), seconds=1
        )
        options = self.world.deployment.model_copy(update={"store": StoreOptions(region=REGION)})
        return NotificationTrigger(
            source=Source.of(options, CLUSTER, sweep).model_dump(mode="json"),
            baseline=baseline_of(self.world).model_dump(mode="json"),
            bell=bell.model_dump(mode="json"),
        )

    def advance(self, next_offset: int, place: str = "orders") -> str:
        """Write a watermark; returns its key."""
        said = watermark.Watermark(
            topic_id=TOPIC_ID,
            start_offset=0,
            leader_epoch=0,
            next_offset=next_offset,
            lineage=((0, 0),),
            broker=1,
            written_at=LONG_AGO,
        )
        key = PartitionKeys(Endpoint(f"s3://{BUCKET}"), CLUSTER, place, 0).watermark
        self.world.raw.put(key, watermark.render(0, said))
        return key

    def tell(self, body: dict[str, Any] | str) -> None:
        self.client.send_message(QueueUrl=self.queue, MessageBody=body if isinstance(body, str) else json.dumps(body))

    def left(self) -> int:
        """Messages that are not deleted."""
        names: tuple[QueueAttributeNameType, ...] = (
            "ApproximateNumberOfMessages",
            "ApproximateNumberOfMessagesNotVisible",
        )
        found = self.client.get_queue_attributes(QueueUrl=self.queue, AttributeNames=names)["Attributes"]
        return sum(int(found[name]) for name in names)

    async def emptied(self) -> None:
        while self.left():
            await asyncio.sleep(0.05)


@pytest.fixture
def rings(world: World, server: SqsServer, monkeypatch: pytest.MonkeyPatch) -> Rings:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "any")
    return Rings(world, server, monkeypatch)


class Waiting(list[Any]):
    """The events of one trigger; ``stored`` is what the triggerer says once Airflow's database has them."""

    def __init__(self, manager: SharedStreamManager, trigger: NotificationTrigger, number: int) -> None:
        self._manager, self._key, self._number = manager, trigger.shared_stream_key(), number
        self._seqs: list[int] = []
        stream = manager.subscribe(trigger_id=number, trigger=trigger, key=self._key)
        self._task = asyncio.create_task(self._take(trigger, stream))

    async def _take(self, trigger: NotificationTrigger, stream: AsyncIterator[Any]) -> None:
        async for event in trigger.filter_shared_stream(stream):
            self.append(event.payload)
            seq = self._manager.bind_pending_event(trigger_id=self._number, key=self._key)
            self._seqs += [] if seq is None else [seq]

    async def event(self) -> Any:
        await self._task
        return self[-1]

    async def stored(self) -> None:
        self._manager.confirm_persisted(self._seqs)
        await self._manager.unsubscribe(self._number, self._key)

    def cancel(self) -> None:
        self._task.cancel()


@asynccontextmanager
async def triggerer(*triggers: NotificationTrigger) -> AsyncIterator[list[Waiting]]:
    """Ends as a triggerer that is killed, as far as the queue can tell: nothing is acknowledged on the way out."""
    manager = SharedStreamManager()
    waiting = [Waiting(manager, one, number) for number, one in enumerate(triggers)]
    try:
        yield waiting
    finally:
        for one in waiting:
            one.cancel()
        await manager.stop_all()


def run(awaitable: Awaitable[Result]) -> Result:
    async def main() -> Result:
        async with asyncio.timeout(60):
            return await awaitable

    return asyncio.run(main())


def test_a_message_is_deleted_only_when_what_came_of_it_is_stored(rings: Rings) -> None:
    """And until then it comes again, to whoever asks after the visibility timeout."""

    async def main() -> None:
        rings.tell(s3_event(rings.advance(3)))
        async with triggerer(rings.trigger()) as [waiting]:
            assert (await waiting.event())["partitions"] == 1
        assert rings.left() == 1

        async with triggerer(rings.trigger()) as [waiting]:
            assert (await waiting.event())["partitions"] == 1
            assert rings.left() == 1
            await waiting.stored()
            await rings.emptied()

    run(main())


def test_what_concerns_nobody_who_waits_is_deleted_too(rings: Rings) -> None:
    async def main() -> None:
        rings.tell(s3_event(rings.advance(7, "clicks")))
        rings.tell(s3_event("kafka-1/orders-0/00000000000000000000.log"))
        rings.tell(s3_event("kafka-1/orders-0/offset.wm", bucket="another"))
        rings.tell(s3_event("kafka-1/gone-0/offset.wm"))
        rings.tell({"Event": "s3:TestEvent"})
        for body in POISON[1:]:
            rings.tell(body)
        async with triggerer(rings.trigger()) as [waiting]:
            await rings.emptied()
            assert waiting == []
            rings.tell(s3_event(rings.advance(3)))
            assert (await waiting.event())["status"] == "advanced"

    run(main())


def test_a_lost_notification_is_healed_by_the_sweep(rings: Rings) -> None:
    async def main() -> None:
        async with triggerer(rings.trigger(sweep=0.01)) as [waiting]:
            await asyncio.sleep(0)
            rings.world.put_index(entry(next_offset=3))
            assert (await waiting.event())["partitions"] == 1

    run(main())


def test_a_queue_that_does_not_answer_leaves_the_sweeps(rings: Rings, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        nobody = f"http://127.0.0.1:{free_port()}/123456789012/q"
        async with triggerer(rings.trigger(queue=nobody)) as [waiting]:
            while "times in a row" not in caplog.text:
                await asyncio.sleep(0.02)
            rings.world.put_index(entry(next_offset=3))
            assert (await waiting.event())["partitions"] == 1

    run(main())


def test_a_watermark_that_cannot_be_read_is_asked_for_again(rings: Rings) -> None:
    async def main() -> None:
        rings.failure = UnknownOutcome("offset.wm", "no answer")
        rings.tell(s3_event(rings.advance(3)))
        async with triggerer(rings.trigger()) as [waiting]:
            while not rings.failures:
                await asyncio.sleep(0.02)
            assert rings.left() == 1
            rings.failure = None
            assert (await waiting.event())["partitions"] == 1

    run(main())


def test_a_topic_that_was_made_again_is_another_incarnation(rings: Rings) -> None:
    lives = [
        Incarnation(topic_id=TOPIC_ID, place="orders", first_seen=LONG_AGO, ended_at=LONG_AGO),
        Incarnation(topic_id=OTHER_ID, place=f"orders@{OTHER_ID}", first_seen=LONG_AGO),
    ]
    known = TopicIncarnations(topic="orders", incarnations=tuple(lives))
    rings.world.raw.put(rings.world.control.incarnations("orders"), known.to_bytes())
    trigger = rings.trigger()
    listener = sqs_watermark.Listener(trigger.source, trigger.bell)
    listener.look()
    rings.tell(s3_event(rings.advance(3, f"orders@{OTHER_ID}").replace("@", "%40")))

    scan, receipts = listener.look()
    assert [one[:5] for one in scan.topics["orders"]] == [("orders", 0, 1, 0, 3)]
    assert len(receipts) == 1
