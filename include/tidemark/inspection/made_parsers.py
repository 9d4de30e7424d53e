"""The parsers and state tables of a topics file, made as a run makes them, and compared with the tables that exist."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tidemark.concurrency import in_parallel
from tidemark.errors import ConfigError, FormatError, RegistryUnavailable, StoreError
from tidemark.parsers.base import Parser
from tidemark.parsers.partition_columns import partitioned_parser
from tidemark.parsers.settings import followed_by, registry_of
from tidemark.planning.schema_following import with_newest
from tidemark.store.probe import Tried
from tidemark.table.delta_table import open_delta, open_topic_table
from tidemark.table.state_columns import StateColumns
from tidemark.table.topic_columns import check_columns
from tidemark.topics import Deployment, TopicSettings

_WHAT = "parsers"


class MadeParsers(NamedTuple):
    """The ``problems`` of topics whose parser or state cannot be made, as (field, rule), and what was ``tried``.

    ``sound`` are the topics without a problem, by their place in the file.
    """

    problems: list[tuple[str, str]]
    tried: list[Tried]
    sound: list[tuple[int, TopicSettings]]


def make_parsers(deployment: Deployment, *, offline: bool) -> MadeParsers:
    """Make the parser of each topic, and the columns of its state table; topics of equal settings share one.

    A topic that follows a registry has the schema that was adopted for it, or else the newest one; ``offline``, none.
    """
    made: dict[str, Parser | ConfigError] = {}
    problems: list[tuple[str, str]] = []
    unasked: list[TopicSettings] = []
    others: list[Tried] = []
    sound: list[tuple[int, TopicSettings]] = []
    for number, stated in enumerate(deployment.topics):
        topic = stated
        if followed_by(topic.parser) is not None:
            if offline:
                unasked.append(topic)
                continue
            found = _followed(deployment, topic)
            if isinstance(found, Tried):
                others.append(found)
                continue
            topic = found
        found_problems = [*_problems(number, topic, made)]
        problems += found_problems
        sound += [] if found_problems else [(number, topic)]
    count = len(deployment.topics) - len(unasked) - len(others)
    tried = [] if problems or offline else [Tried(_WHAT, "yes", f"those of {count:,} topics can be made")]
    if unasked:
        names = ", ".join(topic.topic for topic in unasked[:3]) + ("" if len(unasked) <= 3 else ", …")
        rule = f"{len(unasked):,} topics follow a registry, which --offline does not ask: {names}"
        tried.append(Tried(_WHAT, "not tried", rule))
    return MadeParsers(problems, [*tried, *others], sound)


def compare_with_tables(deployment: Deployment, sound: list[tuple[int, TopicSettings]]) -> MadeParsers:
    """Compare the columns of ``sound`` topics with those of their tables, as a run does before it lands."""
    problems: list[tuple[str, str]] = []
    tried: list[Tried] = []
    for found in in_parallel(lambda item: _beside_table(deployment, *item), sound):
        problems += found if isinstance(found, list) else []
        tried += [found] if isinstance(found, Tried) else []
    return MadeParsers(problems, tried, sound)


def _followed(deployment: Deployment, topic: TopicSettings) -> TopicSettings | Tried:
    """``topic`` with the schema that was adopted for it, or else with the newest one; or the reason for having none."""
    name, registry = f"parser of {topic.cluster}/{topic.topic}", registry_of(topic.parser)
    try:
        adopted = open_topic_table(deployment, topic).topic
        if followed_by(adopted.parser) is None:
            return adopted
        if registry is not None and registry.connection is not None:
            rule = f"no schema was adopted yet, and only Airflow's jobs have the connection {registry.connection}"
            return Tried(name, "not tried", rule)
        return with_newest(topic)
    except ConfigError as error:
        return Tried(name, "no", str(error))
    except (RegistryUnavailable, StoreError, FormatError) as error:
        return Tried(name, "unknown", str(error))


def _problems(number: int, topic: TopicSettings, made: dict[str, Parser | ConfigError]) -> Iterator[tuple[str, str]]:
    key = topic.model_dump_json(include={"parser", "partition_by"})
    if key not in made:
        try:
            made[key] = partitioned_parser(topic.parser, topic.partition_by, f"{topic.cluster}/{topic.topic}")
        except ConfigError as error:
            made[key] = error
    parser = made[key]
    if isinstance(parser, ConfigError):
        yield from _told(number, parser)
        return
    if topic.state is not None:
        try:
            StateColumns(topic, parser.columns)
        except ConfigError as error:
            yield from _told(number, error)


def _beside_table(deployment: Deployment, number: int, topic: TopicSettings) -> list[tuple[str, str]] | Tried:
    """The problems for which a run would refuse to land in the topic's table as it is; none without a table."""
    table = open_topic_table(deployment, deployment.topics[number])._replace(topic=topic)
    try:
        delta = open_delta(table)
        if delta is not None:
            check_columns(table, delta)
    except ConfigError as error:
        return [*_told(number, error)]
    except (StoreError, FormatError) as error:
        return Tried(f"columns of {topic.cluster}/{topic.topic}", "unknown", str(error))
    return []


def _told(number: int, error: ConfigError) -> Iterator[tuple[str, str]]:
    return ((f"topics.{number}.{field}", rule) for field, rule in error.problems)
