"""The parts that commands share: options, components, the printing of answers, and what runs once.

The latter is an upload of everything that is ready, or a survey; their own thread asks the broker.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import structlog
import typer

from tidemark.errors import BrokerError, ConfigError, TidemarkError
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.cluster import FIRST_SLOT
from tidemark.storage import OpenStore, Storage
from tidemark.store import Store, open_store
from tidemark.terminal import Output, columns
from uploader_agent.broker.admin import AdminMetadata, connect
from uploader_agent.broker.authority import Authority, QuorumAuthority, ZooKeeperAuthority
from uploader_agent.broker.properties import Broker, BrokerDirs, parse_properties, read_broker
from uploader_agent.components import Components
from uploader_agent.disk.locks import DirectoryLocks, lock_directories
from uploader_agent.disk.log_dirs import LogDirs
from uploader_agent.disk.watcher import DirectoryWatcher
from uploader_agent.hold import preflight
from uploader_agent.hold.preflight import DeleteDelay, Guarantee
from uploader_agent.intake.fetching import FetchLimits
from uploader_agent.intake.lease import SlotLease, check_count
from uploader_agent.intake.metadata import Ends, SlotMetadata
from uploader_agent.intake.replica import SlotReplica
from uploader_agent.log_source import BrokerDisk, LogSource
from uploader_agent.observability.health import Notifier
from uploader_agent.observability.log_config import configure
from uploader_agent.observability.metrics import Metrics
from uploader_agent.partitions.poller import Answer, LeadersAnswer
from uploader_agent.remote_tier import Connect
from uploader_agent.repair.adoption import partitions_here
from uploader_agent.scheduling.throttle import StoreTraffic
from uploader_agent.scheduling.workers import PartitionJob, is_local
from uploader_agent.settings import PROTOCOLS, AgentSettings, BrokerSettings, FetchSettings
from uploader_agent.stored.cluster_name import ClusterName, DiskIdentity, GuardedStore
from uploader_agent.stored.incarnations import Incarnations
from uploader_agent.tuning import STANDARD, AgentTuning

if TYPE_CHECKING:
    from uploader_agent.intake.brokers import BrokerConnections


ConfigOption = Annotated[
    Path,
    typer.Option("--config", "-c", help="The agent's YAML file.", envvar="TIDEMARK_AGENT_CONFIG", show_default=True),
]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="text for people, json for programs.")]
TopicOption = Annotated[list[str] | None, typer.Option("--topic", help="Only this topic; may be repeated.")]
DEFAULT_CONFIG = Path("/etc/tidemark/agent.yaml")


def broker_of(settings: AgentSettings) -> Broker:
    """The broker as its own files describe it, or the slot that stands for one.

    Raises ConfigError, and BrokerUnavailable if a slot's cluster has no name in the file and cannot be asked.
    """
    if settings.fetch is not None:
        return _slot(settings, settings.fetch)
    assert settings.broker is not None
    path = settings.broker.properties
    broker = read_broker(path, settings.broker.bootstrap)
    if broker.security_protocol not in PROTOCOLS and "security_protocol" not in settings.broker.client:
        rule = (
            f"does not name the protocol of {broker.security_protocol}; add it, or set broker.client.security_protocol"
        )
        raise ConfigError(str(path), [("listener.security.protocol.map", rule)])
    return broker


def _slot(settings: AgentSettings, fetch: FetchSettings) -> Broker:
    cluster = settings.cluster
    if cluster is None:
        with closing(AdminMetadata(-1, _fetch_connector(fetch))) as metadata:
            cluster = metadata.cluster_id()
    protocol = str(fetch.client.get("security_protocol", "PLAINTEXT"))
    return Broker(FIRST_SLOT + fetch.slot, cluster, (fetch.spool.resolve(),), fetch.bootstrap, protocol, "fetch")


@contextmanager
def opened(settings: AgentSettings) -> Iterator[tuple[OpenStore, StoreTraffic]]:
    """A function that opens stores, and their common meter."""
    with closing(StoreTraffic(Metrics(), settings.upload.bandwidth)) as traffic:
        yield partial(open_store, options=settings.store, traffic=traffic), traffic


@contextmanager
def open_incarnations(settings: AgentSettings, broker: Broker, *, dry_run: bool) -> Iterator[Incarnations]:
    """The incarnations of this broker's cluster, for a repair; a dry run writes nothing to the store.

    Raises:
        ConfigError: another cluster owns the cluster's name in the store.
    """
    with opened(settings) as (open_metered, _), cluster_name(settings, broker, open_metered) as owned:
        if dry_run:
            yield Incarnations(storage_of(settings, broker, open_metered), record=False)
        else:
            owned.check()
            guarded = partial(_guarded, open_metered, owned.check)
            yield Incarnations(storage_of(settings, broker, guarded), record=True)


def storage_of(settings: AgentSettings, broker: Broker, opener: OpenStore) -> Storage:
    """The storage of the broker's cluster, with the stores that ``opener`` opens."""
    return Storage(settings.cluster or broker.cluster_id, settings.raw, opener=opener)


@contextmanager
def cluster_name(
    settings: AgentSettings,
    broker: Broker,
    open_any: OpenStore,
    answered: Callable[[], str | None] = lambda: None,
) -> Iterator[ClusterName]:
    """The right to write under the cluster's name. ``answered`` is the cluster that has answered a slot last."""
    stored = storage_of(settings, broker, open_any).cluster_store()
    if settings.fetch is None:
        yield ClusterName(stored, DiskIdentity(broker.log_dirs, broker.identity))
        return
    with closing(AdminMetadata(-1, _fetch_connector(settings.fetch))) as cluster:
        yield ClusterName(stored, lambda: answered() or cluster.cluster_id())


def metadata_of(
    settings: AgentSettings,
    broker: Broker,
    over: Callable[[], Ends] | None = None,
    current: Callable[[], Broker] | None = None,
) -> AdminMetadata | SlotMetadata:
    """A client that asks the cluster over Kafka's protocol. It connects for its first question.

    ``current`` returns the broker as its file describes it when a connection is made; default: always ``broker``.
    """
    if settings.fetch is not None:
        cluster = AdminMetadata(-1, _fetch_connector(settings.fetch))
        return SlotMetadata(settings.fetch, broker.node_id, cluster, over or dict)
    return AdminMetadata(broker.node_id, _connector(settings, current or (lambda: broker)), broker.cluster_id)


@contextmanager
def built(
    settings: AgentSettings,
    broker: Broker,
    *,
    notifier: Notifier | None = None,
    read_only: bool = False,
    lease: SlotLease | None = None,
    log_dirs: LogDirs | None = None,
    tuning: AgentTuning = STANDARD,
) -> Iterator[Components]:
    """An agent's components, with its real surroundings. With a ``lease`` nothing is written without it.

    The default ``log_dirs`` are not locked.

    Raises:
        ConfigError, ClusterReplaced: at the end of the block, if the agent had to end since it may not write.
    """
    followed = _log_dirs(settings, broker, None) if log_dirs is None else log_dirs
    current = (lambda: followed.broker) if isinstance(followed, BrokerDirs) else (lambda: broker)
    with (
        opened(settings) as (open_unguarded, traffic),
        _source(settings, broker, open_unguarded, traffic.metrics, tuning) as source,
        closing(metadata_of(settings, broker, lambda: source.over, current)) as metadata,
        closing(DirectoryWatcher()) as watcher,
        cluster_name(settings, broker, open_unguarded, lambda: metadata.answered) as owned,
    ):

        def check() -> None:
            if lease is not None:
                lease.check()
            owned.check()

        components = Components(
            settings,
            broker,
            metadata,
            open_unguarded if read_only else partial(_guarded, open_unguarded, check),
            watcher,
            authority=None if read_only else authority_of(settings, broker, current),
            notifier=notifier,
            traffic=traffic,
            source=source,
            log_dirs=followed,
            tier=_tier_of(settings, current),
            read_only=read_only,
            tuning=tuning,
        )
        owned.on_wrong = components.stop
        yield components
        owned.raise_wrong()


def _log_dirs(settings: AgentSettings, broker: Broker, locks: DirectoryLocks | None) -> LogDirs:
    """The log directories: those that the broker's file names from now on, or a slot's spool; locked with ``locks``."""
    if settings.broker is None:
        if locks is not None:
            for spool in broker.log_dirs:
                locks.take(spool)
        return LogDirs(broker.log_dirs)
    return BrokerDirs(settings.broker.properties, broker, settings.broker.bootstrap, locks)


@contextmanager
def _source(
    settings: AgentSettings, broker: Broker, open_store: OpenStore, metrics: Metrics, tuning: AgentTuning
) -> Iterator[LogSource]:
    """The source of the log directories."""
    fetch = settings.fetch
    if fetch is None:
        yield BrokerDisk()
        return
    from uploader_agent.intake.brokers import BrokerConnections  # kafka-python is slow to import

    incarnations = Incarnations(storage_of(settings, broker, open_store), record=False)
    limits = FetchLimits(largest_message=fetch.largest_message)
    client = {**fetch.client, "bootstrap_servers": fetch.bootstrap.split(",")}
    with (
        closing(BrokerConnections(client, limits, fetch.rack)) as cluster,
        closing(SlotReplica(fetch, cluster, incarnations.resolve, metrics, segment=tuning.fetch_segment)) as replica,
    ):
        yield replica


def _fetch_connector(fetch: FetchSettings) -> Callable[[], Any]:
    protocol = str(fetch.client.get("security_protocol", "PLAINTEXT"))
    return partial(connect, -1, fetch.bootstrap, protocol, fetch.client)


def _connector(settings: AgentSettings, current: Callable[[], Broker]) -> Callable[[], Any]:
    """A function that connects over Kafka's protocol to the broker that ``current`` returns then."""
    assert settings.broker is not None
    options = settings.broker.client

    def connected() -> Any:
        broker = current()
        return connect(broker.node_id, broker.bootstrap, broker.security_protocol, options)

    return connected


def _tier_of(settings: AgentSettings, current: Callable[[], Broker]) -> Connect | None:
    """Connects to brokers for what only their remote tier has; None for a slot, which fetches all of its log."""
    beside = settings.broker
    if beside is None:
        return None

    def connect() -> AbstractContextManager[BrokerConnections]:
        from uploader_agent.intake.brokers import BrokerConnections  # kafka-python is slow to import

        broker = current()
        client = {"security_protocol": broker.security_protocol, **beside.client}
        return closing(BrokerConnections({**client, "bootstrap_servers": broker.bootstrap.split(",")}, FetchLimits()))

    return connect


def authority_of(settings: AgentSettings, broker: Broker, current: Callable[[], Broker]) -> Authority:
    """The authority on leader epochs, chosen from the broker's own configuration."""
    if broker.mode == "kraft":
        return QuorumAuthority(broker.node_id, _connector(settings, current))
    if broker.zookeeper is None or settings.broker is None:
        return Authority()
    return ZooKeeperAuthority({**broker.zookeeper, **settings.broker.zookeeper})


def holding(settings: AgentSettings, beside: BrokerSettings, broker: Broker) -> tuple[list[Guarantee], DeleteDelay]:
    """How well segments can be held on each log directory, and the broker's delay of deletions. Both are tried."""
    guarantees = preflight.check(broker.log_dirs, settings.hold)
    properties = parse_properties(beside.properties.read_text(encoding="utf-8"))
    return guarantees, preflight.delete_delay(guarantees, properties)


@contextmanager
def locked(
    settings: AgentSettings, notifier: Notifier | None = None, tuning: AgentTuning = STANDARD
) -> Iterator[Components]:
    """The components of an agent that uploads, with its directories locked.

    Raises:
        AlreadyRunning: another agent works on one of them.
        NoLogDir: no log directory can be read.
    """
    configure(settings)
    broker = broker_of(settings)
    try:
        settings.state_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(error.errno, f"state_dir cannot be created: {error.strerror}", str(settings.state_dir)) from error
    if settings.fetch is not None:
        settings.fetch.spool.mkdir(parents=True, exist_ok=True)
    links = [folder for folder in settings.hold.links if folder.is_dir()]
    with lock_directories([settings.state_dir, *links]) as locks:
        log_dirs = _log_dirs(settings, broker, locks)
        with (
            _leased_slot(settings, broker) as lease,
            built(settings, broker, notifier=notifier, lease=lease, log_dirs=log_dirs, tuning=tuning) as components,
        ):
            if settings.broker is not None:
                preflight.tell(*holding(settings, settings.broker, broker), settings.hold)
            yield components


@contextmanager
def _leased_slot(settings: AgentSettings, broker: Broker) -> Iterator[SlotLease | None]:
    """The lease of the slot, if its settings want one, after a wait for it; lost, it ends the process."""
    if settings.fetch is None:
        yield None
        return
    with opened(settings) as (open_any, _):
        stored = storage_of(settings, broker, open_any).cluster_store()
        check_count(stored, settings.fetch.slots)
        if settings.fetch.lease is None:
            yield None
            return
        lease = SlotLease(settings.fetch, stored)
        lease.take()
        with lease.renewed(lambda: signal.raise_signal(signal.SIGTERM)):
            yield lease


def _guarded(open_any: OpenStore, check: Callable[[], object], url: str) -> Store:
    return GuardedStore(open_any(url), check)


@contextmanager
def surveyed(settings: AgentSettings, topics: list[str] | None = None) -> Iterator[Components]:
    """The components of an agent that has surveyed ``topics``, or all; may run beside an agent that uploads."""
    configure(settings)
    others = [topic for topic in topics or () if not settings.accepts_topic(topic)]
    if others:
        raise typer.BadParameter(f"the agent's file excludes {', '.join(others)}", param_hint="--topic")
    if topics:
        settings = settings.model_copy(update={"include": tuple(map(re.escape, topics))})
    broker = broker_of(settings)
    for topic in topics or ():
        partitions_here(broker.log_dirs, topic)
    with built(settings, broker, read_only=True) as components:
        OneShot(components).survey()
        yield components


class CommandAnswer:
    """Lines of one kind, which are named tuples: printed as JSON as they come, or as a table at the end."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._rows: list[tuple[Any, ...]] = []
        self._widths: set[int] = set()

    def add(self, line: Any) -> None:
        """Print ``line``, or keep it for the table."""
        self._widths.add(len(line))
        if self._output == "json":
            typer.echo(json.dumps(line._asdict()))
        else:
            self._rows.append(line)

    def close(self, heads: list[str]) -> None:
        """Print the table, for output as text. ``heads`` must fit the fields of all lines, also for JSON."""
        assert self._widths <= {len(heads)}, f"{len(heads)} heads over lines of {self._widths} fields"
        if self._output == "text":
            typer.echo(columns([heads, *self._rows]))


logger = structlog.get_logger(__name__)

_STALLS = 3
"""Tries of the same jobs before an upload ends without them."""


class OneShot:
    """Runs a command on components that no loop runs."""

    def __init__(self, components: Components) -> None:
        self._parts = components
        self._leadership = components.leadership

    def upload(self, *, tails: bool = False) -> None:
        """Upload everything that is ready, write the index, and drain. A failure is in its partition's ``error``.

        With ``tails`` also seal committed records of active segments that are not quiet, up to the first look.
        """
        parts = self._parts
        parts.workers.start()
        before: dict[TopicPartition, list[PartitionJob]] = {}
        stalls = 0
        while stalls < _STALLS and not parts.stopping.is_set():
            parts.source.catch_up(parts.accepts_topic)
            self.refresh()
            if tails:
                self._seal_tails()
            planned = self._planned()
            if not planned and not self._fetch_from_tier():
                break
            stalls = stalls + 1 if planned == before else 0
            before = planned
            parts.queue.wait_idle()
            parts.packs.settle_awaited()
        if parts.settings.fill.enabled:
            parts.filler.turn(self._leadership.partitions)
        parts.drain()

    def _fetch_from_tier(self) -> bool:
        """Fetch a segment of each partition that only Kafka's own remote tier has; True if one was stored."""
        parts = self._parts
        if parts.tier_filler is None or not parts.settings.fill.fetches_remote_tier:
            return False
        try:
            return parts.tier_filler.turn() > 0
        except BrokerError as error:
            logger.warning("remote_tier_not_fetched", error=str(error))
            return False

    def survey(self) -> None:
        """Learn the state of every partition, and change nothing."""
        self.refresh()
        for partition in self._leadership.partitions.values():
            try:
                if partition.segments:
                    partition.uploader.learn()
            except (TidemarkError, OSError) as error:
                partition.failed(f"{type(error).__name__}: {error}", local=is_local(error))
        surveyed = [partition for partition in self._leadership.partitions.values() if partition.remote.log.surveyed]
        self._parts.packs.read_tails(partition for partition in surveyed if partition.uploader.tails)

    def refresh(self) -> None:
        """Look at all disks, and ask the broker about all partitions in this thread."""
        parts, leadership = self._parts, self._leadership
        parts.index.measure_clock()
        looked_at = parts.runtime.utc_now()
        leadership.look_at_disks()
        parts.open_buckets()
        parts.poller.ask_leaders(leadership.replicas.keys(), everything=parts.source.origin == "disk")
        self._judge(parts.poller.answer_all())
        for partition in leadership.partitions.values():
            partition.look()
        parts.poller.ask_offsets(leadership.ask(leadership.partitions))
        self._judge(parts.poller.answer_all())
        if leadership.confirmed_at is not None:
            parts.index.set_partitions(leadership.partitions.values(), min(leadership.confirmed_at, looked_at))

    def _judge(self, answers: Iterable[Answer]) -> None:
        for answer in answers:
            if isinstance(answer, LeadersAnswer):
                self._leadership.learn(answer)
            else:
                self._leadership.observe(answer)

    def _seal_tails(self) -> None:
        """Have each tail sealed up to the first known high watermark; records appended later are left."""
        for partition in self._leadership.partitions.values():
            if partition.packed.tail.seal_to is None and partition.offsets is not None:
                partition.packed.seal_up_to(partition.offsets.high_watermark)

    def _planned(self) -> dict[TopicPartition, list[PartitionJob]]:
        """Queue all planned jobs, and return them by partition."""
        parts, planned = self._parts, dict[TopicPartition, list[PartitionJob]]()
        quiet_before = parts.runtime.time() - parts.settings.tail_after.total_seconds()
        for tp, partition in self._leadership.partitions.items():
            tasks = [PartitionJob(partition, job) for job in partition.plan(quiet_before)]
            parts.queue.replace(tp, tasks)
            if tasks:
                planned[tp] = tasks
        return planned
