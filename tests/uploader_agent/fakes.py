"""A broker's disk made by hand, a broker that says what it is told to say, and a store that can be watched."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, Self

from crc32c import crc32c

from tests.support.tuned_agent import split, tuned
from tests.tidemark.kafka_log.build import simple
from tests.uploader_agent.tested_agent import TestedAgent
from tidemark.errors import SegmentError
from tidemark.formats.keys import ControlKeys, Endpoint, PartitionKeys, SegmentName, TopicPartition
from tidemark.formats.raw.manifest import SegmentManifest
from tidemark.formats.raw.watermark import Watermark, parse
from tidemark.kafka_log import scan_batches
from tidemark.store import Body, LocalStore, Store
from tidemark.store.base import Fetched, ObjectInfo
from uploader_agent.broker.admin import BrokerUnavailable, Cleanup, KafkaTier, Leader, Led, Offsets
from uploader_agent.broker.authority import Authority
from uploader_agent.broker.properties import Broker
from uploader_agent.components import Components
from uploader_agent.disk.watcher import Watcher
from uploader_agent.remote_tier import Connect
from uploader_agent.settings import AgentSettings

CLUSTER = "test-cluster"
ID = "MkU3OEVBNTcwNTJENDM2Qk"
OTHER_ID = "AkU3OEVBNTcwNTJENDM2Qk"
T = TopicPartition("orders", 0)

QUICK: Mapping[str, Any] = {"retry_initial": "1ms", "retry_cap": "5ms", "hold_min_free": 0.0}
"""The tuning of agents on a :class:`World`: no failure lasts, and the disk is that of the tests' machine."""


def records(base: int, end: int, *, epoch: int = 3, value: str = "") -> bytes:
    """Batches of ten records from ``base`` to ``end``; another ``value`` gives other bytes of the same size."""
    producer = sum(value.encode()) if value else -1
    return b"".join(
        simple(start, min(10, end - start), leader_epoch=epoch, producer_id=producer) for start in range(base, end, 10)
    )


class Disk:
    """Log directories below ``root``."""

    def __init__(self, root: Path, log_dirs: int = 1) -> None:
        self.log_dirs = tuple(root / f"data-{number}" for number in range(log_dirs))
        for folder in self.log_dirs:
            folder.mkdir(parents=True)
            (folder / "meta.properties").write_text(f"version=1\nnode.id=1\ncluster.id={CLUSTER}\n")

    def partition(self, tp: TopicPartition = T, *, topic_id: str | None = ID, log_dir: int = 0) -> FakePartition:
        folder = self.log_dirs[log_dir] / str(tp)
        folder.mkdir(exist_ok=True)
        if topic_id:
            (folder / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}\n")
        made = FakePartition(folder)
        made.lineage([(3, 0)])
        return made


@dataclass
class FakePartition:
    """A partition's directory."""

    folder: Path

    def lineage(self, entries: list[tuple[int, int]]) -> Self:
        lines = "".join(f"{epoch} {start}\n" for epoch, start in entries)
        (self.folder / "leader-epoch-checkpoint").write_text(f"0\n{len(entries)}\n{lines}")
        return self

    def begin(self, epoch: int) -> None:
        """Note that ``epoch`` begins at the log's end, as a broker does that becomes the leader."""
        lines = (self.folder / "leader-epoch-checkpoint").read_text().splitlines()[2:]
        entries = [(int(one), int(start)) for one, start in (line.split() for line in lines)]
        if not entries or entries[-1][0] >= epoch:
            return
        logs = [path for path in sorted(self.folder.glob("*.log")) if path.stat().st_size]
        end = int(logs[-1].stem) if logs else 0
        with suppress(SegmentError):
            for header in scan_batches([logs[-1].read_bytes()] if logs else [], "log", end, allow_partial_tail=True):
                end = header.next_offset
        kept = [entry for entry in entries if entry[1] < end]
        self.lineage([*kept, (epoch, end)])

    def log(self, base: int) -> Path:
        return self.folder / f"{base:020d}.log"

    def segment(self, base: int, content: bytes) -> Self:
        """A segment with the indexes that Kafka would write at every batch."""
        path = self.log(base)
        path.write_bytes(content)
        index = times = b""
        try:
            for header in scan_batches([content], path.name, base, allow_partial_tail=True):
                times += struct.pack(">qi", header.max_timestamp, header.last_offset - base)
                if header.position:
                    index += struct.pack(">ii", header.last_offset - base, header.position)
        except Exception:  # noqa: BLE001, S110 - tests damage segments on purpose
            pass
        path.with_suffix(".index").write_bytes(index)
        path.with_suffix(".timeindex").write_bytes(times[:12])
        return self

    def fill(self, *bases: int, end: int, value: str = "", epoch: int = 3) -> Self:
        """Rotated segments based at ``bases``, and an active one that starts at ``end`` and is empty."""
        for base, following in zip(bases, [*bases[1:], end], strict=True):
            self.segment(base, records(base, following, value=value, epoch=epoch))
            self.snapshot(following)
        return self.segment(end, b"")

    def snapshot(self, offset: int, opened: Mapping[int, int] = MappingProxyType({})) -> None:
        """A producer snapshot: the first offset of each open transaction, by producer."""
        body = struct.pack(">i", len(opened))
        for producer_id, first_offset in opened.items():
            body += struct.pack(">qhiqiqiq", producer_id, 0, -1, -1, -1, -1, -1, first_offset)
        path = self.folder / f"{offset:020d}.snapshot"
        path.write_bytes(struct.pack(">hI", 1, crc32c(body)) + body)

    def retire(self, *bases: int) -> None:
        """What retention does first: rename the files of segments."""
        for base in bases:
            for path in sorted(self.folder.glob(f"{base:020d}.*")):
                if not path.name.endswith(".deleted"):
                    path.rename(f"{path}.deleted")

    def unlink_deleted(self) -> None:
        """What retention does after ``file.delete.delay.ms``."""
        for path in self.folder.glob("*.deleted"):
            path.unlink()

    def roll(self, end: int) -> Self:
        """Make ``end`` the base of a new active segment."""
        self.snapshot(end)
        return self.segment(end, b"")


@dataclass
class FakeMetadata:
    """Says what it is told to; ``down`` makes it fail. ``leads`` is led by ``node_id``, ``others`` by others."""

    leads: dict[TopicPartition, Led] = field(default_factory=lambda: {T: Led(3, ID)})
    others: dict[TopicPartition, Leader] = field(default_factory=dict)
    replicas: tuple[int, ...] = ()
    high: dict[TopicPartition, int] = field(default_factory=dict)
    default_high: int = 1_000_000
    policy: str = "delete"
    node_id: int = 1
    log_start: int = 0
    tier: KafkaTier | None = None
    down: bool = False
    asked: int = 0

    def leaders(self, wanted: Collection[TopicPartition], *, everything: bool = False) -> dict[TopicPartition, Leader]:
        self._check()
        self.asked += 1
        ours = {tp: Leader(self.node_id, led, self.replicas) for tp, led in self.leads.items()}
        said = (ours | self.others).items()
        return {tp: leader for tp, leader in said if tp in wanted or (everything and leader.broker == self.node_id)}

    def offsets(self, led: Mapping[TopicPartition, Led]) -> dict[TopicPartition, Offsets]:
        self._check()
        found = {tp: self.high.get(tp, self.default_high) for tp in led if self.leads.get(tp) == led[tp]}
        return {tp: Offsets(high, high, self.log_start) for tp, high in found.items()}

    def remote_tier(self, led: Mapping[TopicPartition, Led]) -> dict[TopicPartition, KafkaTier | None]:
        self._check()
        return {tp: self.tier for tp in led if self.leads.get(tp) == led[tp]}

    def cleanup(self, topics: Collection[str]) -> dict[str, Cleanup]:
        self._check()
        return dict.fromkeys(topics, Cleanup(self.policy, 86_400_000))

    def _check(self) -> None:
        if self.down:
            raise BrokerUnavailable("the broker cannot be asked: told so")


class WatchedStore:
    """Another store that tells each call to ``before`` and ``after``, and counts; anything may be raised there."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.url = inner.url
        self.puts: list[str] = []
        self.before: Callable[[str, str], None] = lambda _operation, _key: None
        self.after: Callable[[str, str], None] = lambda _operation, _key: None
        self._changed = threading.Condition()

    def put(self, key: str, body: bytes | BinaryIO, **options: Any) -> str:
        self.before("put", key)
        etag = self.inner.put(key, body, **options)
        with self._changed:
            self.puts.append(key)
            self._changed.notify_all()
        self.after("put", key)
        return etag

    def get(self, key: str, *, if_match: str | None = None, limit: int | None = None) -> Fetched:
        self.before("get", key)
        return self.inner.get(key, if_match=if_match, limit=limit)

    def get_range(self, key: str, start: int, end: int, *, if_match: str | None = None) -> bytes:
        return self.inner.get_range(key, start, end, if_match=if_match)

    def stream(
        self, key: str, start: int = 0, end: int | None = None, *, if_match: str | None = None
    ) -> AbstractContextManager[Body]:
        return self.inner.stream(key, start, end, if_match=if_match)

    def now(self) -> datetime:
        return self.inner.now()

    def head(self, key: str) -> ObjectInfo:
        self.before("head", key)
        return self.inner.head(key)

    def list(self, prefix: str, *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        self.before("list", prefix)
        return self.inner.list(prefix, start_after=start_after)

    def copy(self, source: str, target: str, *, source_etag: str) -> str:
        etag = self.inner.copy(source, target, source_etag=source_etag)
        self.after("copy", target)
        return etag

    def delete(self, key: str, *, if_match: str | None = None) -> None:
        raise AssertionError(f"the agent never deletes, but wants to delete {key}")

    def await_put(self, wanted: Callable[[], bool], timeout: float = 20.0) -> None:
        """Wait until ``wanted`` holds after some PUT."""
        with self._changed:
            assert self._changed.wait_for(wanted, timeout), f"not within {timeout} s; PUTs so far: {self.puts}"


class World:
    """A disk, a broker and a store, and agents that work on them."""

    def __init__(self, root: Path, log_dirs: int = 1) -> None:
        self.root = root
        self.disk = Disk(root / "disk", log_dirs)
        self.metadata = FakeMetadata()
        self.authority: Authority = Authority()
        self.store = WatchedStore(LocalStore(root / "store"))
        self.others: dict[str, WatchedStore] = {}
        """Other buckets than :attr:`store`, by their URLs."""
        self.endpoint = Endpoint(self.store.url)
        self.control = ControlKeys("", CLUSTER)
        self.begins_epochs = True
        self.tier: Connect | None = None
        """Connects to the brokers for what only their remote tier has."""
        self.broker = Broker(1, CLUSTER, self.disk.log_dirs, "127.0.0.1:1", "PLAINTEXT", "kraft")

    def another(self, broker: int, **metadata: Any) -> World:
        """Another broker of the cluster: with a disk of its own, over the same store."""
        other = World(self.root / f"broker-{broker}")
        other.store, other.endpoint = self.store, self.endpoint
        other.broker = replace(other.broker, node_id=broker)
        other.metadata = FakeMetadata(**metadata)
        return other

    def settings(self, **changes: Any) -> AgentSettings:
        base: dict[str, Any] = {
            "broker": {"properties": "unused"},
            "raw": {"url": self.store.url},
            "state_dir": str(self.root / "state"),
            "upload": {"concurrency": 3},
        }
        return AgentSettings.model_validate(base | changes)

    @contextmanager
    def agent(
        self, watcher: Watcher | None = None, *, read_only: bool = False, **changes: Any
    ) -> Iterator[TestedAgent]:
        self.metadata.node_id = self.broker.node_id
        for log_dir in self.disk.log_dirs if self.begins_epochs else ():
            for tp, led in self.metadata.leads.items():
                if (log_dir / str(tp) / "leader-epoch-checkpoint").exists():
                    FakePartition(log_dir / str(tp)).begin(led.leader_epoch)
        with closing(watcher or Watcher()) as bell:
            own, tuning = split(changes)
            settings = self.settings(**own)
            surroundings = settings, self.broker, self.metadata, lambda url: self.others.get(url, self.store), bell
            yield TestedAgent(
                Components(
                    *surroundings,
                    authority=self.authority,
                    tier=self.tier,
                    read_only=read_only,
                    tuning=tuned({**QUICK, **tuning}),
                )
            )

    def once(self, **changes: Any) -> TestedAgent:
        """Run a new agent's ``upload_once``, as after a restart."""
        with self.agent(**changes) as agent:
            agent.upload_once()
            return agent

    def keys(self, tp: TopicPartition = T, place: str | None = None) -> PartitionKeys:
        return PartitionKeys(self.endpoint, CLUSTER, place or tp.topic, tp.partition)

    def watermark(self, tp: TopicPartition = T, place: str | None = None) -> tuple[int, Watermark]:
        key = self.keys(tp, place).watermark
        base, found = parse(self.store.inner.get(key).body, key)
        assert found is not None
        return base, found

    def manifest(
        self, base: int, tp: TopicPartition = T, place: str | None = None, suffix: str = ""
    ) -> SegmentManifest:
        key = self.keys(tp, place).manifest(SegmentName(base, suffix))
        return SegmentManifest.from_bytes(self.store.inner.get(key).body, key)

    def stored(self, base: int, extension: str = "log", tp: TopicPartition = T, suffix: str = "") -> bytes:
        return self.store.inner.get(self.keys(tp).segment(SegmentName(base, suffix), extension)).body

    def damaged(self, base: int, tp: TopicPartition = T) -> str:
        """The suffix of the one segment with damaged bytes at ``base``."""
        found = [SegmentName.parse(name) for name in self.names(tp) if ".corrupt-" in name]
        [suffix] = [one[0].suffix for one in found if one is not None and one[0].base == base]
        return suffix

    def names(self, tp: TopicPartition = T) -> list[str]:
        """Names of the objects of a partition."""
        folder = self.keys(tp).folder
        return [info.key.removeprefix(folder) for info in self.store.inner.list(folder)]
