"""The parts that commands share: options, components, and the printing of answers."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from tidemark.endpoints import resolver_of
from tidemark.errors import ConfigError, TidemarkError
from tidemark.formats.raw.slots import FIRST_SLOT
from tidemark.store import Store, open_store
from tidemark.terminal import Output, columns
from uploader_agent.broker.admin import AdminMetadata, connect
from uploader_agent.broker.authority import Authority, NoAuthority, QuorumAuthority, ZooKeeperAuthority
from uploader_agent.broker.properties import Broker, read_broker
from uploader_agent.components import Components
from uploader_agent.disk.watcher import DirectoryWatcher
from uploader_agent.intake.fetching import FetchLimits
from uploader_agent.intake.lease import LeasedStore, SlotLease, check_count
from uploader_agent.intake.metadata import Ends, SlotMetadata
from uploader_agent.intake.replica import SlotReplica
from uploader_agent.log_source import BrokerDisk, LogSource
from uploader_agent.observability.log_config import configure
from uploader_agent.observability.metrics import Metrics
from uploader_agent.observability.systemd import Notifier
from uploader_agent.one_shot import OneShot
from uploader_agent.repair.adoption import partitions_here
from uploader_agent.scheduling.throttle import StoreTraffic
from uploader_agent.settings import PROTOCOLS, AgentSettings, FetchSettings
from uploader_agent.stored.destinations import Destinations, OpenStore

ConfigOption = Annotated[
    Path,
    typer.Option("--config", "-c", help="The agent's YAML file.", envvar="TIDEMARK_AGENT_CONFIG", show_default=True),
]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="text for people, json for programs.")]
TopicOption = Annotated[list[str] | None, typer.Option("--topic", help="Only this topic; may be repeated.")]
DEFAULT_CONFIG = Path("/etc/tidemark/agent.yaml")


class AlreadyRunning(TidemarkError):
    """Another agent works on one of the directories."""


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
    """A function that opens stores, with a connection for each upload and two for all else, and their common meter."""
    connections = max(settings.store.connections, settings.upload.concurrency + 2)
    options = settings.store.model_copy(update={"connections": connections})
    with closing(StoreTraffic(Metrics(), settings.upload.bandwidth)) as traffic:
        yield partial(open_store, options=options, traffic=traffic), traffic


@contextmanager
def open_destinations(settings: AgentSettings, broker: Broker, *, dry_run: bool) -> Iterator[Destinations]:
    """The destinations of this broker's cluster, for a repair; a dry run writes nothing there."""
    name = settings.cluster or broker.cluster_id
    with opened(settings) as (open_metered, _):
        yield Destinations(name, resolver_of(settings.raw), open_metered, record=not dry_run)


def metadata_of(
    settings: AgentSettings, broker: Broker, over: Callable[[], Ends] | None = None
) -> AdminMetadata | SlotMetadata:
    """A client that asks the cluster over Kafka's protocol. It connects for its first question."""
    if settings.fetch is not None:
        cluster = AdminMetadata(-1, _fetch_connector(settings.fetch))
        return SlotMetadata(settings.fetch, broker.node_id, cluster, over or dict)
    return AdminMetadata(broker.node_id, _connector(settings, broker))


@contextmanager
def built(
    settings: AgentSettings,
    broker: Broker,
    *,
    notifier: Notifier | None = None,
    read_only: bool = False,
    lease: SlotLease | None = None,
) -> Iterator[Components]:
    """An agent's components, with its real surroundings. With a ``lease`` nothing is written without it."""
    with (
        opened(settings) as (open_unleased, traffic),
        _source(settings, broker, open_unleased, traffic.metrics) as source,
        closing(metadata_of(settings, broker, lambda: source.over)) as metadata,
        closing(DirectoryWatcher()) as watcher,
    ):
        yield Components(
            settings,
            broker,
            metadata,
            open_unleased if lease is None else partial(_leased, open_unleased, lease),
            watcher,
            authority=None if read_only else authority_of(settings, broker),
            notifier=notifier,
            traffic=traffic,
            source=source,
            read_only=read_only,
        )


@contextmanager
def _source(settings: AgentSettings, broker: Broker, open_store: OpenStore, metrics: Metrics) -> Iterator[LogSource]:
    """The source of the log directories."""
    fetch = settings.fetch
    if fetch is None:
        yield BrokerDisk()
        return
    from uploader_agent.intake.brokers import BrokerConnections  # kafka-python is slow to import

    name = settings.cluster or broker.cluster_id
    destinations = Destinations(name, resolver_of(settings.raw), open_store, record=False)
    limits = FetchLimits(largest_message=fetch.largest_message)
    client = {**fetch.client, "bootstrap_servers": fetch.bootstrap.split(",")}
    with (
        closing(BrokerConnections(client, limits, fetch.rack)) as cluster,
        closing(SlotReplica(fetch, cluster, destinations, metrics)) as replica,
    ):
        yield replica


def _fetch_connector(fetch: FetchSettings) -> Callable[[], Any]:
    protocol = str(fetch.client.get("security_protocol", "PLAINTEXT"))
    return partial(connect, -1, fetch.bootstrap, protocol, fetch.client)


def _connector(settings: AgentSettings, broker: Broker) -> Callable[[], Any]:
    """A function that connects to ``broker`` over Kafka's protocol."""
    assert settings.broker is not None
    return partial(connect, broker.node_id, broker.bootstrap, broker.security_protocol, settings.broker.client)


def authority_of(settings: AgentSettings, broker: Broker) -> Authority:
    """The authority on leader epochs, chosen from the broker's own configuration."""
    if broker.mode == "kraft":
        return QuorumAuthority(broker.node_id, _connector(settings, broker))
    if broker.zookeeper is None or settings.broker is None:
        return NoAuthority()
    return ZooKeeperAuthority({**broker.zookeeper, **settings.broker.zookeeper})


def lock_directories(folders: Iterable[Path]) -> ExitStack:
    """Lock all ``folders`` until the result is closed: a second agent on one of them refuses to start.

    The lock is taken on the directories themselves (``flock`` on a descriptor that is open for reading). So nothing is
    written in ``log.dirs``, the lock holds across containers and state directories, and it ends with the process.

    Raises:
        AlreadyRunning: names the directory that another agent has locked.
    """
    with ExitStack() as stack:
        for folder in sorted({folder.resolve() for folder in folders}):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise AlreadyRunning(f"{folder}: another agent uses this directory; stop it first") from error
        return stack.pop_all()


@contextmanager
def locked(settings: AgentSettings, notifier: Notifier | None = None) -> Iterator[Components]:
    """The components of an agent that uploads, with its directories locked."""
    configure(settings)
    broker = broker_of(settings)
    try:
        settings.state_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(error.errno, f"state_dir cannot be created: {error.strerror}", str(settings.state_dir)) from error
    if settings.fetch is not None:
        settings.fetch.spool.mkdir(parents=True, exist_ok=True)
    links = [folder for folder in settings.hold.links if folder.is_dir()]
    with (
        lock_directories([*broker.log_dirs, settings.state_dir, *links]),
        _leased_slot(settings, broker) as lease,
        built(settings, broker, notifier=notifier, lease=lease) as components,
    ):
        yield components


@contextmanager
def _leased_slot(settings: AgentSettings, broker: Broker) -> Iterator[SlotLease | None]:
    """The lease of the slot, if its settings want one, after a wait for it; lost, it ends the process."""
    if settings.fetch is None:
        yield None
        return
    with open_destinations(settings, broker, dry_run=False) as destinations:
        store, control = destinations.control_store, destinations.control
        check_count(store, control, settings.fetch.slots)
        if settings.fetch.lease is None:
            yield None
            return
        lease = SlotLease(settings.fetch, store, control)
        lease.take()
        with lease.renewed(lambda: signal.raise_signal(signal.SIGTERM)):
            yield lease


def _leased(open_store: OpenStore, lease: SlotLease, url: str) -> Store:
    return LeasedStore(open_store(url), lease)


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
        if self._output is Output.json:
            typer.echo(json.dumps(line._asdict()))
        else:
            self._rows.append(line)

    def close(self, heads: list[str]) -> None:
        """Print the table, for output as text. ``heads`` must fit the fields of all lines, also for JSON."""
        assert self._widths <= {len(heads)}, f"{len(heads)} heads over lines of {self._widths} fields"
        if self._output is Output.text:
            typer.echo(columns([heads, *self._rows]))
