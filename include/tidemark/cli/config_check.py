"""``tidemark config check``: checks the topics file, and that its buckets, brokers and registries answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidemark.cli.options import DEFAULT_TOPICS, As, ClientConfig, Topics, client_settings, show
from tidemark.cli.read_models import agent_problems, summary_of, triggerer_capacity
from tidemark.config import content_of, grouped
from tidemark.endpoints import resolver_of
from tidemark.errors import ConfigError, FormatError, RegistryUnavailable, StoreError
from tidemark.monitoring.deployment_conditions import waiting_triggers
from tidemark.parsers.settings import followed_by, registry_of
from tidemark.store.probe import CLOCK, TRIED, Tried, try_clock, try_store
from tidemark.topics import Deployment, TopicSettings, load_topics
from tidemark.words import plural

if TYPE_CHECKING:
    from tidemark.inspection.made_parsers import MadeParsers

_NO_PARSERS: Final = Tried(
    "parsers", "not tried", "this environment has no parsers: tidemark-kafka[onboarding] has them"
)

config_app = typer.Typer(no_args_is_help=True, help="The topics file.")

_SOME_NUMBER: Final = 1
"""Any schema number: a registry answers even if it does not have it."""


@config_app.callback()
def _group() -> None:
    """Keep ``check`` a command of its own."""


@config_app.command(epilog="Example: tidemark config check --agents --topics include/topics.yaml")
def check(
    topics: Topics = DEFAULT_TOPICS,
    agents: Annotated[
        bool,
        typer.Option(
            "--agents",
            help="Ask whether agents were seen for each topic, whether each freshness can be held, and whether one "
            "triggerer of Airflow's is enough.",
        ),
    ] = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="Check the file alone: ask no store, broker or registry.")
    ] = False,
    client_config: ClientConfig = None,
    output: As = "text",
) -> None:
    """Check the topics file, and whether its buckets, brokers and registries answer these credentials.

    Exits with 2 and names each problem if the file is wrong, or if no run could make a topic's parser or state. Exits
    with 1 if a bucket cannot be listed or read, if it replaces objects that are to be created once, or if brokers or a
    registry do not answer; with --agents also if no agent was ever seen for some topic, or if a topic's freshness
    cannot be held as agents and Airflow are set up. Writing is tried without leaving anything behind. A refused write,
    or a wrong clock of this host, is reported and does not change the exit code.
    """
    if agents and offline:
        raise typer.BadParameter(
            "contradict each other: --agents asks the store; leave one of them out",
            param_hint="--agents with --offline",
        )
    deployment = load_topics(topics)
    summary = summary_of(deployment)
    parsers = _made_parsers(topics, deployment, offline=offline)
    checks = [] if offline else [*_asked(deployment, client_config), *_of_agents(deployment, asked=agents)]
    if any(check.what == f"list {deployment.lake_store}" and check.outcome == "yes" for check in checks):
        checks += _of_tables(topics, deployment, parsers)
    checks = [*(parsers.tried if parsers else [_NO_PARSERS]), *checks]
    lines = [
        f"{topics}: {plural(len(summary), 'topic')}",
        *(f"{topic['topic']} → {topic['table']}" for topic in summary),
        *(check.line for check in checks),
        *(["nothing was asked (--offline): buckets, brokers and registries may be wrong"] * offline),
    ]
    show({"topics": summary, "checks": [check._asdict() for check in checks]}, lines, output)
    failed = [check for check in checks if check.failed]
    for check in failed:
        typer.echo(check.complaint, err=True)
    if any(not check.what.startswith("put ") and check.what != CLOCK for check in failed):
        raise typer.Exit(1)


def _made_parsers(source: Path, deployment: Deployment, *, offline: bool) -> MadeParsers | None:
    """Make all parsers; None if this environment cannot. Raises ConfigError if some cannot be made."""
    try:
        from tidemark.inspection.made_parsers import make_parsers
    except ImportError:
        return None
    return _sound(source, make_parsers(deployment, offline=offline))


def _of_tables(source: Path, deployment: Deployment, made: MadeParsers | None) -> list[Tried]:
    """Compare columns with the tables'. Raises ConfigError if a topic could not land in its table."""
    if made is None:
        return []
    from tidemark.inspection.made_parsers import compare_with_tables

    return _sound(source, compare_with_tables(deployment, made.sound)).tried


def _sound(source: Path, made: MadeParsers) -> MadeParsers:
    if made.problems:
        raise ConfigError(str(source), grouped(made.problems, content_of(source)))
    return made


def _asked(deployment: Deployment, client_config: Path | None) -> list[Tried]:
    """Ask stores, brokers and registries; nothing is written."""
    clusters = ((cluster, deployment.bootstrap.get(cluster)) for cluster in deployment.clusters)
    brokers = (_brokers(cluster, bootstrap, client_config) for cluster, bootstrap in clusters)
    results = [*_stores(deployment), *brokers, *_registries(deployment)]
    raw = resolver_of(deployment.raw).default().store
    return [*results, *([try_clock(raw, deployment.store)] if Tried(f"list {raw}", "yes", TRIED) in results else [])]


def _of_agents(deployment: Deployment, *, asked: bool) -> Iterator[Tried]:
    subject = "agents"
    if not asked:
        yield Tried(subject, "not tried", "--agents reads their reports")
        return
    try:
        problems = agent_problems(deployment)
    except (StoreError, FormatError) as error:
        yield Tried(subject, "unknown", f"their reports cannot be read: {error}")
        return
    yield from (Tried(subject, "no", problem) for problem in problems)
    yield _of_triggerers(deployment)
    if not problems:
        live = sum(topic.freshness is not None for topic in deployment.topics)
        seen = f"they have seen each of the {len(deployment.topics)} topics"
        yield Tried(subject, "yes", f"{seen}; their settings of freshness hold {live} promises")


def _of_triggerers(deployment: Deployment) -> Tried:
    """Whether one triggerer takes all waits. How many triggerers run is known to Airflow alone."""
    subject, waits = "triggerers", waiting_triggers(deployment)
    try:
        capacity = triggerer_capacity(deployment)
    except (StoreError, FormatError) as error:
        return Tried(subject, "unknown", f"their reports cannot be read: {error}")
    if capacity is None:
        return Tried(subject, "not tried", "none has reported how many triggers it runs")
    told = f"{waits:,} DAGs wait as triggers, and a triggerer runs {capacity:,} ([triggerer] capacity)"
    if waits <= capacity:
        return Tried(subject, "yes", told)
    least = -(-waits // capacity)
    return Tried(subject, "not tried", f"{told}: raise it, or run {least} triggerers; Airflow alone knows how many run")


def _stores(deployment: Deployment) -> Iterator[Tried]:
    resolver = resolver_of(deployment.raw)
    topics = (resolver.resolve(topic.cluster, topic.topic, 0) for topic in deployment.topics)
    places = {endpoint.store: endpoint.prefix for endpoint in (*topics, resolver.default())}
    for url, prefix in places.items():
        checks = [*try_store(url, deployment.store, prefix, writes=False)]
        yield from checks
        if not checks[-1].failed:
            yield Tried(f"put to {url}", "not tried", "agents write there: `tidemark-agent config check` tries it")
    folder = deployment.deployment_keys(deployment.clusters[0]).prefix
    yield from try_store(deployment.lake_store, deployment.store, folder, writes=True)


def _brokers(cluster: str, bootstrap: str | None, client_config: Path | None) -> Tried:
    name = f"brokers of {cluster}"
    if bootstrap is None:
        return Tried(name, "not tried", "the topics file has no bootstrap for the cluster, and ingestion needs none")
    if find_spec("kafka") is None:
        return Tried(name, "not tried", "this environment has no kafka-python: tidemark-kafka[onboarding] brings it")
    from kafka.errors import KafkaError

    from tidemark.kafka_admin import AdminClient

    try:
        with closing(AdminClient(**client_settings(bootstrap, client_config))) as admin:
            brokers = [broker["broker_id"] for broker in admin.describe_cluster()["brokers"]]
    except KafkaError as error:
        hint = "correct bootstrap, or name a file with the client's settings by --client-config"
        return Tried(name, "unknown", f"{bootstrap}: {error}; {hint}")
    return Tried(name, "yes", f"{bootstrap} names {', '.join(map(str, sorted(brokers)))}")


def _registries(deployment: Deployment) -> Iterator[Tried]:
    """The checks of registries; one that topics share is checked once."""
    done: set[str] = set()
    for topic in deployment.topics:
        registry, followed = registry_of(topic.parser), followed_by(topic.parser)
        if registry is None:
            continue
        name = f"registry {registry.url}" + (f", subject {followed.subject}" if followed else "")
        if name not in done:
            done.add(name)
            yield _registry(name, topic)


def _registry(name: str, topic: TopicSettings) -> Tried:
    from tidemark.parsers.schema_registry import SchemaRegistry
    from tidemark.planning.schema_following import KINDS

    registry, followed = registry_of(topic.parser), followed_by(topic.parser)
    assert registry is not None
    if registry.connection is not None:
        return Tried(name, "not tried", f"only Airflow and its jobs have its connection {registry.connection}")
    client = SchemaRegistry(registry, KINDS[topic.parser.kind], brief=True)
    try:
        if followed is not None:
            return Tried(name, "yes", f"its newest version is {client.newest(followed.subject).version}")
        client.find([_SOME_NUMBER])
    except (ConfigError, RegistryUnavailable) as error:
        return Tried(name, "no" if isinstance(error, ConfigError) else "unknown", str(error))
    return Tried(name, "yes", "it answers")
