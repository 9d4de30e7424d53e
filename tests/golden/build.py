"""Makes the corpus: a small deployment on real brokers, agents and stores, with each kind of object that there is.

Everything runs as a deployment runs it: agents are processes beside Kafka 4.3.1 and 3.9.2, jobs are Spark's programs
with their tasks in this process, people's words come from the commands. Records are few, and of fixed dates.
"""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from confluent_kafka import Producer
from kafka import TopicPartition as KafkaPartition
from typer.testing import CliRunner

from tests.golden.deployment import (
    CLUSTER,
    CLUSTER_39,
    PAIR,
    PREFIX,
    RAW,
    SCHEMA,
    WIDER,
    deployment_of,
    register_schemas,
    topics_file,
)
from tests.spark.inline import Inline
from tests.support.kafka import KafkaCluster
from tests.support.paths import ROOT, env_bin
from tests.support.process import ManagedProcess
from tests.support.s3 import ADMIN, S3Server, allow
from tests.support.tuned_agent import tuned_agent
from tests.support.waiting import wait_until
from tests.tidemark.parsers.registry_server import Registry, serving
from tests.tidemark.parsers.test_avro import encoded, framed
from tests.uploader_agent.faults.cluster import await_in_sync, await_leader, create
from tidemark.backfill.report import Approval, outcome_of, read_report, write_part
from tidemark.backfill.request import BackfillRequest
from tidemark.cli.app import app
from tidemark.endpoints import resolver_of
from tidemark.erasure.secret import VARIABLE
from tidemark.errors import FormatError, NotFound
from tidemark.formats.keys import ControlKeys, PartitionKeys
from tidemark.formats.raw import watermark
from tidemark.formats.raw.head import parse_head
from tidemark.formats.table.ledger import new_attempt
from tidemark.formats.table.live_landing import LiveLanding, TopicLanding, read_landing, write_landing
from tidemark.monitoring.incident_store import watch
from tidemark.planning.maintenance.retention import Subject
from tidemark.raw.objects import read_watermark
from tidemark.raw_topic import RawTopic
from tidemark.storage import PartitionStore, StoredWatermark
from tidemark.store import Store, open_store
from tidemark.store.s3.clients import forget_clients
from tidemark.store.s3.store import S3Store
from tidemark.table.delta_table import TopicTable, committed_ledger, open_topic_table
from tidemark.timestamps import utc_now
from tidemark.topics import Deployment
from tidemark_airflow.assets.outbox import Commit, move
from tidemark_airflow.triggers.index_scanner import IndexScanner, Source
from tidemark_spark.jobs.retain import retain
from tidemark_spark.jobs.running import run_job
from tidemark_spark.run import driver
from tidemark_spark.run.progress import watched

DAY: Final = 86_400_000
FIRST: Final = int(datetime(2026, 1, 5, 10, tzinfo=UTC).timestamp() * 1000)
"""The time of the first record."""

ON_DISK: Final = {
    CLUSTER: ["again", "clicks", "compacted", "events", "filtered", "live", "lost", "orders", "payments"],
    CLUSTER_39: ["legacy"],
    PAIR: ["cut"],
}
"""The topics that the agents of a cluster's brokers upload."""

SECRET: Final = "a-secret-of-the-corpus-that-hides-nothing"
HOURLY: Final = {"segment.ms": str(DAY // 24), "file.delete.delay.ms": "0"}
"""Kafka rolls a segment once a record is an hour later than its first: each day has a segment of its own."""


class Builder:
    """The deployment, and what its parts do; ``folder`` is empty."""

    def __init__(self, folder: Path, s3: S3Server, clusters: Mapping[str, KafkaCluster], registry: str) -> None:
        self.folder, self.s3, self.clusters, self.kafka = folder, s3, clusters, clusters[CLUSTER]
        self.topics = topics_file(folder, s3.endpoint, registry)
        self.deployment: Deployment = deployment_of(self.topics)
        self.raw: Store = open_store("s3://raw", self.deployment.store)
        self.lake: Store = open_store("s3://lake", self.deployment.store)
        self.control = ControlKeys(PREFIX, CLUSTER)

    # -- the parts -----------------------------------------------------------------------------------------------------

    def table(self, topic: str) -> TopicTable:
        """A topic's table."""
        found = next(settings for settings in self.deployment.topics if settings.topic == topic)
        return open_topic_table(self.deployment, found)

    def job(self, name: str, *words: str) -> None:
        """One of Spark's programs, which must succeed."""
        assert run_job(name, ["--topics", str(self.topics), *words], Inline()) == 0, (name, words)

    def command(self, *words: str, who: str = "ada", given: str = "") -> Any:
        """What the command ``tidemark`` says in JSON, run by ``who``, whose key of the store it is."""
        with credentials(self.s3, who if who != "ada" else ADMIN), pytest.MonkeyPatch.context() as patch:
            patch.setattr("getpass.getuser", lambda: who)
            arguments = [*words, "--topics", str(self.topics), "--output", "json"]
            result = CliRunner().invoke(app, arguments, input=given)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    def agent_file(self, name: str, *, cluster: str = CLUSTER, node: int = 1, **more: Any) -> Path:
        """An agent's configuration: each writes about all topics of its broker, so that its index names them."""
        include = ["fetched"] if "fetch" in more else ON_DISK[cluster]
        broker = self.clusters[cluster].brokers[node - 1]
        source = {} if "fetch" in more else {"broker": {"properties": str(broker.properties_path)}}
        path = self.folder / f"{name}.yaml"
        path.write_text(
            yaml.safe_dump(
                {
                    "cluster": cluster,
                    **source,
                    "raw": RAW,
                    "store": self.deployment.store.model_dump(mode="json", exclude_defaults=True),
                    "state_dir": str(self.folder / name),
                    "include": include,
                    "tail_after": "0s",
                    **more,
                }
            )
        )
        return path

    def upload(self, *, cluster: str = CLUSTER, node: int = 1, **more: Any) -> None:
        """Upload what there is, active segments included."""
        name = "fetching" if "fetch" in more else f"agent-{cluster}-{node}"
        config = self.agent_file(name, cluster=cluster, node=node, **more)
        command: list[str | Path] = [env_bin("agent", "tidemark-agent"), "upload-once", "--config", config]
        done = subprocess.run(command, env=self._env(), capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr

    def running(self, name: str, **more: Any) -> ManagedProcess:
        """An agent that runs beside its broker; start it with ``with``."""
        command: list[str | Path] = [
            *tuned_agent({"scan_interval": "1s", "index_interval": "500ms"}),
            "run",
            "--config",
            self.agent_file(name, **more),
        ]
        return ManagedProcess(name, command, cwd=ROOT, log=self.folder / f"{name}.log", env=self._env())

    def _env(self) -> dict[str, str]:
        return self.s3.env() | {"PATH": "/usr/bin:/bin"}

    def create(self, topic: str, *, partitions: int = 2, cluster: str = CLUSTER, **config: str) -> None:
        """A topic whose segments are a day's."""
        self.clusters[cluster].create_topic(topic, partitions=partitions, config={**HOURLY, **config})

    def send(self, topic: str, records: Sequence[tuple[Any, ...]], cluster: str = CLUSTER, **settings: str) -> None:
        """Records (partition, key, value, day), each day's in a batch of its own."""
        producer = Producer({"bootstrap.servers": self.clusters[cluster].bootstrap, "linger.ms": 50, **settings})
        produce(producer, topic, records)

    def transactions(self, topic: str, day: int, cluster: str = CLUSTER) -> None:
        """A committed and an aborted transaction in each of two partitions."""
        producer = Producer({"bootstrap.servers": self.clusters[cluster].bootstrap, "transactional.id": topic})
        producer.init_transactions()
        for end in (producer.commit_transaction, producer.abort_transaction):
            producer.begin_transaction()
            produce(producer, topic, [(n % 2, b"t%d" % n, order(100 + n, end.__name__), day) for n in range(4)])
            end()

    def delete_records(self, topic: str, before: int) -> None:
        """Have the broker delete all records of partition 0 and 1 below an offset, and their segments."""
        places = {KafkaPartition(topic, partition): before for partition in (0, 1)}
        with self.kafka.admin() as admin:
            admin.delete_records(places)
        data = self.kafka.brokers[0].log_dirs[0]
        gone = [data / f"{topic}-{partition}" for partition in (0, 1)]
        wait_until(
            lambda: all(int(min(folder.glob("*.log*")).name[:20]) >= before for folder in gone),
            what="the segments to go",
        )

    def keys(self, topic: str, partition: int = 0) -> PartitionKeys:
        """The keys of a partition of a topic's newest incarnation."""
        table = self.table(topic)
        known, cluster = RawTopic(table).incarnations, table.topic.cluster
        endpoint = resolver_of(self.deployment.raw).resolve(cluster, topic, partition)
        return PartitionKeys(endpoint, cluster, known[-1].place, partition)

    def stored_watermark(self, topic: str) -> StoredWatermark:
        """The watermark of partition 0 of a topic's only incarnation."""
        table = self.table(topic)
        [known] = RawTopic(table).incarnations
        stored = read_watermark(PartitionStore(self.raw, self.keys(topic)), known.topic_id)
        assert stored is not None
        return stored

    def until(self, store: Store, folder: str) -> None:
        """Wait until there is an object in ``folder``."""
        wait_until(lambda: any(True for _ in store.list(folder)), what=f"an object in {folder}")

    # -- what happens --------------------------------------------------------------------------------------------------

    def orders(self) -> None:
        """JSON with a state table, transactions, refused records; rebuilt, compacted, audited and erased."""
        self.create("orders")
        self.send(
            "orders", [(n % 2, b"k%d" % (n % 7), order(n), n // 10) for n in range(30)], **{"compression.type": "zstd"}
        )
        self.send("orders", [(0, b"bad", b"no JSON", 2), (1, b"k1", None, 2), (1, None, order(7), 2)])
        self.transactions("orders", 2)
        self.upload()
        self.job("ingest", "--topic", "orders")
        self.job("ingest", "--topic", "orders")  # closes its dates
        self.job("state", "--topic", "orders")
        self.send("orders", [(n % 2, b"k%d" % (n % 7), order(n, "later"), 2) for n in range(30, 40)])
        self.upload()
        self.job("ingest", "--topic", "orders", "--cluster", CLUSTER, "--lineage", "0123456789abcdef")
        self.job("compact", "--topic", "orders")
        self.job("state", "--topic", "orders")
        self.job("replay", "--topic", "orders")
        self.backfill("orders")
        self.job("audit", "--topic", "orders")
        self.job("state", "--topic", "orders")
        self.job("state", "--topic", "orders", "--audit", "--part", "0")

    def backfill(self, topic: str) -> None:
        """A rebuild of a day, with each part of its report."""
        table, name = self.table(topic), "00000000000000b1"
        day = (datetime.fromtimestamp(FIRST / 1000, UTC) + timedelta(days=1)).date()
        request = BackfillRequest(
            cluster=CLUSTER, topic=topic, mode="rebuild", first=day, last=day, extend=False, differences=True,
            dry_run=False, max_bytes=1 << 40, approve_above=0, reason="a new parser", by="ada",
        )  # fmt: skip
        write_part(table, name, "request", request)
        words = ("--topic", topic, "--from", str(day), "--to", str(day), "--report", name)
        self.job("rebuild", *words)
        preview = read_report(table, name).preview
        assert preview is not None
        plan = ("--topic", topic, "--plan", str(preview.plan))
        self.job("run_plan", *plan, "--compare", "--report", name)
        approval = Approval(why="more than 0 bytes", approved=True, by="grace", at=utc_now())
        write_part(table, name, "approval", approval, preview.attempt)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(driver, "watched", partial(watched, seconds=0.01))  # it is soon over
            self.job("run_plan", *plan)
        write_part(table, name, "outcome", outcome_of(table, preview), preview.attempt)

    def erasure(self) -> None:
        """A request, its approval by another identity, the pass; and a request that is withdrawn."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(VARIABLE, SECRET)
            ask = ("erase", "request", "--topic", "orders", "--reason", "DSR-1", "--by", "ada")
            name = str(self.command(*ask, given="k3\nnobody")["id"])
            self.command("erase", "approve", name, "--by", "grace", "--records", "99", "--yes", who="grace")
            other = str(self.command(*ask, given="k4")["id"])
            self.command("erase", "withdraw", other, "--by", "ada", "--reason", "a wrong person")
            self.job("erase")

    def payments(self, registry: Registry) -> None:
        """Avro of a registry's schemas, of which the second waits for a person in part."""
        self.create("payments", partitions=1)
        register_schemas(registry, 1)
        body = [framed(1, encoded(SCHEMA, {"id": n, "sum": n / 4})) for n in range(6)]
        self.send("payments", [(0, None, value, 0) for value in body])
        self.upload()
        self.job("ingest", "--topic", "payments")
        register_schemas(registry, 2)
        self.send("payments", [(0, None, framed(2, encoded(WIDER, {"id": 9, "sum": 1.0, "of": "x"})), 1)])
        self.upload()
        self.job("ingest", "--topic", "payments")

    def clicks(self) -> None:
        """Gaps: of two partitions, one's is acknowledged."""
        self.create("clicks")
        self.send("clicks", [(n % 2, b"c", b"click %d" % n, n // 20) for n in range(40)])
        self.delete_records("clicks", 10)  # before the first upload: the logs begin there
        self.upload()
        self.send("clicks", [(n % 2, b"c", b"click %d" % n, n // 20) for n in range(40, 80)])
        self.delete_records("clicks", 30)
        self.upload()
        self.job("ingest", "--topic", "clicks")
        watch(self.deployment, CLUSTER, utc_now())
        words = ("clicks", "0", "20", "30", "--by", "ada", "--reason", "deleted by mistake", "--yes")
        self.command("acknowledge-gap", *words)
        self.upload()
        self.job("ingest", "--topic", "clicks")

    def again(self) -> None:
        """A topic that is deleted and created again."""
        for life in range(2):
            self.create("again", partitions=1)
            self.send("again", [(0, b"a", b"life %d: %d" % (life, n), n // 5) for n in range(10)])
            self.upload()
            if life == 0:
                self.kafka.delete_topic("again")
        self.job("ingest", "--topic", "again")

    def events(self) -> None:
        """Retention: a date of the table, and raw segments."""
        self.create("events", partitions=1)
        self.send("events", [(0, b"e", b"event %d" % n, n // 10) for n in range(40)])
        self.upload()
        for _ in range(2):
            self.job("ingest", "--topic", "events")
        table = self.table("events")
        expired = datetime.fromtimestamp(FIRST / 1000, UTC) + timedelta(days=31)
        subjects: list[tuple[Subject, datetime]] = [("table", expired), ("raw", utc_now() + timedelta(days=31))]
        for subject, at in subjects:
            retain(table, subject, at, "ada", dry_run=True)
            retain(table, subject, at + timedelta(days=1), "ada")

    def legacy(self) -> None:
        """From Kafka 3.9.2 with ZooKeeper."""
        self.create("legacy", cluster=CLUSTER_39)
        self.send(
            "legacy",
            [(n % 2, b"l", b"legacy %d" % n, n // 8) for n in range(16)],
            CLUSTER_39,
            **{"compression.type": "lz4"},
        )
        self.transactions("legacy", 2, CLUSTER_39)
        self.upload(cluster=CLUSTER_39)
        self.job("ingest", "--topic", "legacy")

    def compacted(self) -> None:
        """Records that Kafka's cleaner has removed."""
        self.create("compacted", partitions=1, **{"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.001"})
        self.send("compacted", [(0, b"k%d" % (n % 3), b"compacted %d" % n, n // 6) for n in range(24)])
        cleaned = self.kafka.brokers[0].log_dirs[0] / "cleaner-offset-checkpoint"
        active = "compacted 0 18"
        wait_until(lambda: active in cleaned.read_text().splitlines(), what="the cleaner")
        self.upload()
        self.job("ingest", "--topic", "compacted")

    def filtered(self) -> None:
        """Records that a parser leaves out."""
        self.create("filtered", partitions=1)
        self.send("filtered", [(0, None, b"%d" % n, n // 5) for n in range(10)])
        self.upload()
        self.job("ingest", "--topic", "filtered")

    def cut(self) -> None:
        """Landed records that an unclean election cuts off; then an epoch that no leader had."""
        pair, (one, two) = self.clusters[PAIR], self.clusters[PAIR].brokers
        settings = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
        create(pair, "cut", [[1, 2]], **HOURLY, **settings)
        self.send("cut", [(0, b"u", b"common %d" % n, 0) for n in range(6)], PAIR)
        await_in_sync(pair, "cut", 2)
        two.kill()
        await_in_sync(pair, "cut", 1)
        self.send("cut", [(0, b"u", b"first %d" % n, 1) for n in range(6)], PAIR)
        self.upload(cluster=PAIR)
        self.job("ingest", "--topic", "cut")
        one.kill()
        two.start()
        await_leader(pair, "cut", 2)
        self.send("cut", [(0, b"u", b"second %d" % n, 1) for n in range(10)], PAIR)
        self.upload(cluster=PAIR, node=2)
        self.job("ingest", "--topic", "cut")

    @contextmanager
    def foreign(self) -> Iterator[None]:
        """An epoch in ``offset.wm`` that no leader had: the agent needs two minutes to be certain of that."""
        base, stored, _ = self.stored_watermark("cut")
        body = watermark.render(base, stored.model_copy(update={"leader_epoch": 99}))
        self.raw.put(self.keys("cut").watermark, body)
        with self.running("fenced", cluster=PAIR, node=2):
            third = [(0, b"u", b"third %d" % n, 1) for n in range(4)]
            self.send("cut", [*third, (0, b"u", b"last", 2)], PAIR)
            yield
            self.until(self.raw, f"{PREFIX}/_foreign/")
            end = stored.next_offset + len(third)
            wait_until(lambda: self.stored_watermark("cut").watermark.next_offset == end, what="the seal")
            wait_until(lambda: self._packed("cut", PAIR, 2) == end + 1, what="the last to be packed")
        self.job("ingest", "--topic", "cut")

    def fetched(self) -> None:
        """By a slot, which has no broker's disk."""
        self.create("fetched", partitions=1)
        self.send("fetched", [(0, b"f", b"fetched %d" % n, n // 5) for n in range(10)])
        fetch = {
            "bootstrap": self.kafka.bootstrap,
            "spool": str(self.folder / "spool"),
            "slots": 1,
            "slot": 0,
            "lease": "5s",
        }
        with self.running("fetching", fetch=fetch):
            self.until(self.raw, self.control.slot_lease(0))
        self.upload(fetch=fetch)
        self.job("ingest", "--topic", "fetched")

    def live(self) -> None:
        """Packs, with a head that something else damages."""
        self.create("live")
        self.send("live", [(n % 2, b"v", b"live %d" % n, 0) for n in range(20)])
        self.upload()
        head = self.control.head(1)
        with self.running("packing", freshness={"live": "3s"}, tail_after="1h"):
            self.send("live", [(n % 2, b"v", b"live %d" % n, 0) for n in range(20, 40)])
            wait_until(lambda: self._packed("live") == 40, what="all to be packed")
        self._land_live()
        self.raw.put(head, b"no head")
        self.send("live", [(n % 2, b"v", b"live %d" % n, 0) for n in range(40, 60)])
        with self.running("packing", freshness={"live": "3s"}, tail_after="1h"):
            self.until(self.raw, f"{PREFIX}/_damaged/")
            wait_until(lambda: self._packed("live") == 60, what="all to be packed, with a new head")
        parse_head(self.raw.get(head).body, head)
        self._unread()
        self.job("ingest", "--topic", "live")

    def _land_live(self) -> None:
        key = self.deployment.deployment_keys(CLUSTER).landing
        due = TopicLanding(topic="live", attempt=new_attempt(), digest="0" * 16)
        landing = LiveLanding(cluster=CLUSTER, began_at=utc_now(), topics=(due,))
        write_landing(self.lake, key, landing, read_landing(self.lake, key).etag)
        self.job("land_live", "--cluster", CLUSTER)
        self.job("compact_live", "--cluster", CLUSTER)

    def _unread(self) -> None:
        """A run while a pack is damaged."""
        packs = [info.key for info in self.raw.list(self.control.packs(1))]
        bodies = {key: self.raw.get(key).body for key in packs}
        for key in packs:
            self.raw.put(key, b"no pack")
        self.job("ingest", "--topic", "live")
        for key, body in bodies.items():
            self.raw.put(key, body)

    def forget(self) -> None:
        """A word that gives up ranges of packs whose topic is gone."""
        self.create("lost", partitions=1)
        with self.running("losing", freshness={"lost": "3s"}, tail_after="1h"):
            self.send("lost", [(0, b"x", b"lost %d" % n, 0) for n in range(5)])
            wait_until(lambda: self._packed("lost") == 5, what="it to be packed")
        keys = self.keys("lost")
        topic_id = RawTopic(self.table("lost")).incarnations[-1].topic_id
        for info in list(self.raw.list(keys.folder)):
            self.raw.delete(info.key)
        words = ("--forget", str(topic_id), "--apply", "--by", "ada", "--reason", "its prefix was removed")
        later = self.raw.now() + timedelta(days=3)  # a pack must be two days old
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(S3Store, "now", lambda _: later)
            self.job("retain_packs", "--cluster", CLUSTER, *words)

    def list_tables(self) -> None:
        """The tables in a catalog of Iceberg tables."""
        self.job("mirror", "--cluster", CLUSTER)

    def scheduling(self) -> None:
        """What Airflow's side writes, by the code that it runs: the scan's status, the outbox, the watch."""
        IndexScanner(Source.of(self.deployment, CLUSTER, 10)).scan()
        for topic in ("orders", "clicks"):
            move(self.table(topic), Commit.of(committed_ledger(self.table(topic))))
        for minutes in (1, 8):
            watch(self.deployment, CLUSTER, utc_now() + timedelta(minutes=minutes))

    def _packed(self, topic: str, cluster: str = CLUSTER, node: int = 1) -> int:
        """The sum of the ends that the broker's head names for the partitions of ``topic``."""
        key = ControlKeys(PREFIX, cluster).head(node)
        try:
            head = parse_head(self.raw.get(key).body, key)
        except (NotFound, FormatError):
            return 0
        return sum(entry.tail_end for entry in head.entries if entry.topic == topic)


def order(n: int, of: str = "first") -> bytes:
    """An order, as JSON."""
    return json.dumps({"id": n, "city": ("Wien", "Graz", of)[n % 3]}).encode()


def produce(producer: Producer, topic: str, records: Sequence[tuple[Any, ...]]) -> None:
    """Send ``records`` and wait for them; a new day begins a new batch."""
    for at, (partition, key, value, day) in enumerate(records):
        if at and day != records[at - 1][3]:
            assert producer.flush(60) == 0
        time = FIRST + day * DAY + at * 1000
        producer.produce(topic, key=key, value=value, timestamp=time, partition=partition, headers=[("n", b"%d" % at)])
    assert producer.flush(60) == 0


@contextmanager
def credentials(s3: S3Server, user: str = ADMIN) -> Iterator[None]:
    """A user's credentials in this process's environment."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3.env(user).items():
            patch.setenv(name, value)
        forget_clients()
        yield
    forget_clients()


@contextmanager
def nobodys_machine() -> Iterator[None]:
    """Names of this machine and its user stay out of the objects."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("getpass.getuser", lambda: "ada")
        patch.setattr(socket, "gethostname", lambda: "golden.example.com")
        yield


@contextmanager
def built(folder: Path) -> Iterator[Builder]:
    """A deployment in which everything has happened; its store answers until the end."""
    users = {"grace": [allow(["s3:*"], ["*"])]}
    with ExitStack() as until:
        s3 = until.enter_context(S3Server(folder / "s3", users=users))
        unbalanced = {"auto.leader.rebalance.enable": "false", "replica.lag.time.max.ms": "3000"}
        clusters = {
            CLUSTER: KafkaCluster(folder / "kafka"),
            CLUSTER_39: KafkaCluster(folder / "kafka39", version="3.9.2"),
            PAIR: KafkaCluster(folder / "pair", brokers=2, common=unbalanced),
        }
        for cluster in clusters.values():
            until.enter_context(cluster)
        registry = until.enter_context(serving(Registry()))
        until.enter_context(credentials(s3))
        until.enter_context(nobodys_machine())
        builder = Builder(folder, s3, clusters, registry.url)
        steps: list[Callable[[], None]] = [
            builder.orders, lambda: builder.payments(registry), builder.clicks, builder.again, builder.events,
            builder.legacy, builder.fetched, builder.compacted, builder.filtered, builder.live, builder.forget,
            builder.list_tables, builder.erasure, builder.list_tables, builder.scheduling,
        ]  # fmt: skip
        builder.cut()
        with builder.foreign():
            for step in steps:
                step()
        yield builder
