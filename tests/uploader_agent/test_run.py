"""The loop as it runs: what wakes it, what stops it, what its neighbours see of it."""

from __future__ import annotations

import random
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.fixtures import SEED
from tests.support.kafka import KafkaCluster
from tests.support.s3 import S3Server
from tests.support.waiting import HUNG, wait_until
from tests.uploader_agent.fakes import ID, OTHER_ID, T, World, records
from tests.uploader_agent.real import SMALL, Deployment, Load
from tests.uploader_agent.tested_agent import TestedAgent
from tidemark.formats.keys import TopicPartition
from tidemark.raw.heads import read_head
from tidemark.storage import ClusterStore
from tidemark.store import StoreOptions, open_store
from uploader_agent.broker.admin import Led
from uploader_agent.disk.watcher import DirectoryWatcher, Watcher
from uploader_agent.observability.health import Health, HttpServer

NEVER = "1d"


@contextmanager
def running(world: World, watcher: Watcher, **settings: Any) -> Iterator[TestedAgent]:
    """An agent in a thread of this process; it has drained when the block ends."""
    with world.agent(watcher, **settings) as agent, agent.running():
        yield agent


def watermark_is(world: World, end: int, at: TopicPartition = T, place: str | None = None) -> bool:
    written = world.keys(at, place).watermark in world.store.puts
    return written and world.watermark(at, place)[1].next_offset == end


def stored_is(world: World, end: int, at: TopicPartition = T) -> bool:
    """Whether seals and this broker's packs end at ``end``."""
    if world.keys(at).watermark not in world.store.puts:
        return False
    written = world.watermark(at)[1]
    head = read_head(ClusterStore(world.store.inner, world.control), world.broker.node_id)
    tails = [one for one in head.value.entries if (one.topic, one.partition) == at] if head else []
    ends = [one.tail_end for one in tails if (one.epoch, world.broker.node_id) in written.tails]
    return max([written.next_offset, *ends]) == end


def test_rotation_rings_the_bell(world: World) -> None:
    """Neither scan nor metadata poll is due for a day: only inotify can have told."""
    partition = world.disk.partition().fill(0, end=100)
    with running(world, DirectoryWatcher(), scan_interval=NEVER, metadata_interval=NEVER):
        world.store.await_put(lambda: watermark_is(world, 100))
        for base in range(100, 600, 100):
            partition.segment(base, records(base, base + 100)).roll(base + 100)
            world.store.await_put(lambda end=base + 100: watermark_is(world, end))  # type: ignore[misc]


def test_missed_event_is_found_by_the_scan(world: World) -> None:
    partition = world.disk.partition().fill(0, end=100)
    with running(world, Watcher(), scan_interval="50ms", metadata_interval=NEVER):
        world.store.await_put(lambda: watermark_is(world, 100))
        partition.segment(100, records(100, 200)).roll(200)
        world.store.await_put(lambda: watermark_is(world, 200))


def test_silent_bell_alone_finds_nothing(world: World) -> None:
    """The seed of the test above: without inotify and without a scan, a ring alone changes nothing."""
    partition, bell = world.disk.partition(), Watcher()
    partition.fill(0, end=100)
    with running(world, bell, scan_interval=NEVER, metadata_interval=NEVER):
        world.store.await_put(lambda: watermark_is(world, 100))
        partition.segment(100, records(100, 200)).roll(200)
        bell.wake()
    assert world.watermark()[1].next_offset == 100


def test_high_watermark_that_lags_is_asked_for_again(world: World) -> None:
    world.disk.partition().fill(0, end=100)
    world.metadata.default_high = 50
    with running(world, DirectoryWatcher(), scan_interval=NEVER, metadata_interval=NEVER):
        world.store.await_put(lambda: world.control.index(1) in world.store.puts)
        world.metadata.default_high = 100
        world.store.await_put(lambda: watermark_is(world, 100))


def test_new_and_lost_partitions(world: World) -> None:
    other = TopicPartition("orders", 1)
    world.disk.partition().fill(0, end=100)
    with running(world, DirectoryWatcher(), scan_interval=NEVER, metadata_interval="20ms") as agent:
        world.store.await_put(lambda: watermark_is(world, 100))
        world.disk.partition(other).fill(0, end=50)
        world.metadata.leads = {other: Led(3, ID)}
        world.store.await_put(lambda: watermark_is(world, 50, other))
        assert list(agent.leadership.partitions) == [other]


def test_topic_made_again_under_a_watched_path_rings_again(world: World) -> None:
    """A watch goes along with the directory that is renamed away."""
    former = world.disk.partition().fill(0, end=100)
    place, incarnations = f"orders@{OTHER_ID}", world.control.incarnations("orders")
    with running(world, DirectoryWatcher(), scan_interval=NEVER, metadata_interval=NEVER):
        world.store.await_put(lambda: watermark_is(world, 100))
        world.metadata.leads = {T: Led(4, OTHER_ID)}
        former.folder.rename(former.folder.with_name("orders-0.f00-delete"))
        again = world.disk.partition(topic_id=OTHER_ID).lineage([(4, 0)]).segment(0, records(0, 50, epoch=4))
        world.store.await_put(lambda: world.store.puts.count(incarnations) == 2)
        again.roll(50)
        world.store.await_put(lambda: watermark_is(world, 50, place=place))


def test_several_that_finish_together_are_written_together(world: World) -> None:
    """While offset.wm is being written, the ends of other segments wait for the next write. The first is the claim."""
    partition, key = world.disk.partition(), world.keys().watermark
    partition.fill(*range(0, 1000, 100), end=1000)
    first = threading.Event()

    def hold(operation: str, name: str) -> None:
        if (operation, name) == ("put", key) and key in world.store.puts and not first.is_set():
            first.set()
            world.store.await_put(lambda: sum(put.endswith("manifest.json") for put in world.store.puts) == 10)

    world.store.before = hold
    world.once(upload={"concurrency": 4})
    assert world.watermark()[1].next_offset == 1000
    assert 3 <= world.store.puts.count(key) <= 5


def test_health_and_metrics(world: World) -> None:
    world.disk.partition().fill(0, end=100)
    with (
        running(world, DirectoryWatcher()) as agent,
        HttpServer("127.0.0.1", 0, agent.health, agent.metrics.registry, agent.waiting) as server,
    ):
        world.store.await_put(lambda: watermark_is(world, 100))
        wait_until(lambda: get(server.port, "/-/ready")[0] == 200, what="ready")
        assert get(server.port, "/-/healthy") == (200, "ok\n")
        assert get(server.port, "/elsewhere")[0] == 404
        status, text = get(server.port, "/metrics")
    assert status == 200
    assert 'tidemark_agent_segments_total{state="whole"} 1.0' in text
    assert "tidemark_agent_led_partitions 1.0" in text
    assert f"tidemark_agent_log_bytes_total {len(records(0, 100))}.0" in text


def test_a_loop_that_stands_still_is_not_healthy(world: World) -> None:
    now = [0.0]
    health = Health(10, timedelta(minutes=10), clock=lambda: now[0])
    with world.agent() as agent, HttpServer("127.0.0.1", 0, health, agent.metrics.registry, agent.waiting) as server:
        now[0] = 11
        assert get(server.port, "/-/healthy")[0] == 503
        assert get(server.port, "/-/ready")[0] == 503
        health.turned()
        assert get(server.port, "/-/healthy")[0] == 200


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=HUNG) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.fixture
def deployment(
    kafka: KafkaCluster,
    s3_server: S3Server,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Deployment:
    """An agent beside the shared broker, for a topic with many small segments, in the real store."""
    for name, value in s3_server.env().items():
        monkeypatch.setenv(name, value)
    topic = "run-" + "".join(char if char.isalnum() else "-" for char in request.node.name)[-60:]
    kafka.create_topic(topic, config=SMALL["4.3.1"])
    options = {"endpoint_url": s3_server.endpoint, "path_style": True}
    raw = open_store("s3://raw", StoreOptions.model_validate(options))
    return Deployment(tmp_path, kafka, raw, topic, topic, store=options, scan_interval="1h")


@pytest.mark.essential
def test_sigterm_finishes_what_is_under_way_and_takes_nothing_new(deployment: Deployment, kafka: KafkaCluster) -> None:
    Load(kafka, deployment.topic).send(400)
    deployment.configure(upload={"concurrency": 1})
    assert deployment.run("run", {}, "SIGTERM", "before", ".log", "3") == 0, deployment.log.read_text()
    logs = [key for key in deployment.puts() if key.endswith(".log")]
    assert len(logs) == len(deployment.manifests()) == 3
    assert deployment.watermark()[1].next_offset == deployment.manifests()[-1].next_offset
    assert deployment.puts()[-1] == deployment.control.index(1), "the index is written last"
    deployment.run("upload-once", {})
    deployment.check_exact()
    logs = [key for key in deployment.puts() if key.endswith(".log")]
    assert len(logs) == len(set(logs)), "a restart sends no segment again"


POINTS = [
    ("before", ".log", "2"),
    ("after", ".log", "2"),
    ("after", ".index", "3"),
    ("before", ".timeindex", "2"),
    ("before", ".manifest.json", "2"),
    ("after", ".manifest.json", "3"),
    ("before", "offset.wm", "2"),
    ("after", "offset.wm", "1"),
    ("after", ".json", "1"),
]


CHOSEN = random.Random(f"{SEED}: points").sample(POINTS, 2)


@pytest.mark.parametrize(
    ("when", "suffix", "n"),
    [pytest.param(*point, id="-".join(point), marks=() if point in CHOSEN else pytest.mark.full) for point in POINTS],
)
def test_killed_at_any_point_under_load(
    deployment: Deployment, kafka: KafkaCluster, when: str, suffix: str, n: str
) -> None:
    """SIGKILL while a producer goes on; the next agent makes the store exact."""
    load = Load(kafka, deployment.topic)
    load.send(200)
    agent = deployment.start("run", {}, "SIGKILL", when, suffix, n)
    load.send(200)
    assert agent.wait(HUNG) == -signal.SIGKILL, deployment.log.read_text()
    load.send(100)
    assert deployment.run("upload-once", {}) == 0, deployment.log.read_text()
    deployment.check_exact()
    _, watermark = deployment.watermark()
    covered = set(range(watermark.next_offset))
    assert covered <= load.acknowledged[0].keys()
    assert len(load.acknowledged[0]) - len(covered) < 60, "only the active segment is missing"
    logs = [key for key in deployment.puts() if key.endswith(".log")]
    assert len(logs) - len(set(logs)) == 0, "what was answered is not sent again"
