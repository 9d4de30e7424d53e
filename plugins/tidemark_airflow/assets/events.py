"""Notifies other DAGs about tables: events of two assets, a partition key per date, and of state tables, at least once.

==================  ===================================================================================================
``<table>``         a date's rows have changed: they landed, were rebuilt, or were removed by retention; or, without a
                    partition key, the table has new columns, because its schema follows a registry
``<table>.final``   a date is closed, with these rows: when it first closes, when it closes again after late rows, and
                    when it is rebuilt while it is closed
``<state table>``   a topic's state table has a new commit: no partition key
==================  ===================================================================================================

``extra`` has ``cluster``, ``topic``, the newest ``ledger`` of the event and its ``attempt``, the table's ``rows``, and
``columns_added`` if there are any. Events of ``<table>.final`` also have ``incomplete``, their dates that closed with
offsets outstanding. Those of a state table have its own ``ledger`` and ``attempt``, and ``of``, the ledger of the
topic's table that it equals.

Airflow stores the events of a task together with its success, in one transaction. The stored events are read back
before they count as sent, see :mod:`tidemark_airflow.assets.outbox`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from airflow.sdk import Asset
from airflow.sdk.execution_time.context import InletEventsAccessors
from pydantic import JsonValue

from tidemark.errors import TidemarkError
from tidemark.formats.table.plan import RunResult
from tidemark.topics import Deployment, TopicSettings
from tidemark_airflow.assets.outbox import Commit, UnpublishedCommits, unpublished

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tidemark.formats.table.ledger import Ledger
    from tidemark.table.delta_table import TopicTable
    from tidemark_airflow.planned import Planned

LAST_EVENTS = 20
"""Number of an asset's newest events that are read; events of others, such as a person's, may be among them."""

log = logging.getLogger(__name__)


class Assets(NamedTuple):
    """A topic's assets: the rows of its table, and the closed dates of its table."""

    rows: Asset
    final: Asset


def assets_of(deployment: Deployment, topic: TopicSettings) -> Assets:
    """The assets of a topic's table, on which other DAGs schedule."""
    url = f"{deployment.lake_store}/{deployment.table_keys(topic).root}"
    return Assets(
        Asset(name=topic.table, uri=url, group="tidemark"),
        Asset(name=f"{topic.table}.final", uri=f"{url}.final", group="tidemark"),
    )


def state_asset(deployment: Deployment, topic: TopicSettings) -> Asset:
    """The asset of a topic's state table."""
    uri = f"{deployment.lake_store}/{deployment.state_keys(topic).root}"
    return Asset(name=topic.state_table, uri=uri, group="tidemark")


def stored_commits(assets: Collection[Asset]) -> set[Commit]:
    """The commits named by the newest events in Airflow's record of these assets."""
    record = InletEventsAccessors(list(assets))
    newest = (event for asset in assets for event in record[asset].ascending(False).limit(LAST_EVENTS))
    return {commit for event in newest if (commit := named_by(event.extra)) is not None}


def named_by(extra: Mapping[str, object] | None) -> Commit | None:
    """The newest commit of an event, or None if the event is not Tidemark's."""
    ledger, attempt = (extra or {}).get("ledger"), (extra or {}).get("attempt")
    if isinstance(ledger, int) and isinstance(attempt, str) and attempt.isdecimal():
        return Commit(ledger, int(attempt))
    return None


def news_of(table: TopicTable, ledger: Ledger) -> UnpublishedCommits | None:
    """Commits up to ``ledger`` that are not in Airflow's record of events; advances the outbox pointer accordingly."""
    return unpublished(table, ledger, stored_commits(assets_of(table.deployment, table.topic)))


def publish(context: Context, table: TopicTable, planned: Planned) -> bool:
    """Have Airflow send the events of all unsent commits when the task succeeds; False if there are none.

    The task's outlets are set here to the outlets of ``table``, whatever topic the task is about.
    """
    from tidemark.table.delta_table import committed_ledger

    if not planned["empty"]:
        log_result(result_of(table, int(planned["attempt"])))
    outlets = announced(context, table, committed_ledger(table))
    set_outlets(context, outlets or ())
    return outlets is not None


def publish_states(context: Context, deployment: Deployment, topics: Iterable[TopicSettings]) -> None:
    """Have Airflow send an event of each state table's newest commit when the task succeeds, unless it has one.

    The task's outlets are set here, whatever topics its declared ones are of: Airflow knows only declared assets. A
    commit that was sent is found in Airflow's record of events, so that a kill repeats events and loses none. A topic
    that cannot be read does not keep others from their events.
    """
    outlets: list[Asset] = []
    for topic in topics:
        try:
            asset = _announced_state(context, deployment, topic)
        except (TidemarkError, OSError):
            log.exception("%s/%s: no event of its state table; the next run will send it", topic.cluster, topic.topic)
        else:
            outlets += [asset] if asset is not None else []
    set_outlets(context, outlets)


def _announced_state(context: Context, deployment: Deployment, topic: TopicSettings) -> Asset | None:
    """The asset of a state table for which the task is to have an event; None if its commit is sent."""
    from tidemark.table.delta_table import open_topic_table
    from tidemark.table.state_table import StateTable

    table = open_topic_table(deployment, topic)
    ledger = StateTable.open(table).committed() if table.topic.state else None
    asset = state_asset(table.deployment, table.topic)
    if ledger is None or Commit(ledger.n, ledger.attempt) in stored_commits([asset]):
        return None
    context["outlet_events"][asset].extra = {
        "cluster": table.topic.cluster,
        "topic": table.topic.topic,
        "ledger": ledger.n,
        "attempt": str(ledger.attempt),
        "of": ledger.of.n,
        "rows": ledger.rows,
    }
    log.info("commit %d of %s: an event", ledger.n, asset.name)
    return asset


def set_outlets(context: Context, outlets: Collection[Asset]) -> None:
    """Set the task's outlets; Airflow sends an event of each when the task succeeds, whatever it declared.

    An asset alias would need no such change, but Airflow sends its events without a partition key, and with only the
    declared outlets it would send an event of each, whatever has changed.
    """
    context["task"].outlets = list(outlets)


def announced(context: Context, table: TopicTable, ledger: Ledger) -> list[Asset] | None:
    """The assets of ``table`` for which the task is to have events; None if all commits up to ``ledger`` are sent."""
    news = news_of(table, ledger)
    outlets: list[Asset] = []
    if news is not None:
        assets = assets_of(table.deployment, table.topic)
        extra: dict[str, JsonValue] = {
            "cluster": table.topic.cluster,
            "topic": table.topic.topic,
            "ledger": news.commit.n,
            "attempt": str(news.commit.attempt),
            "rows": news.rows,
        }
        incomplete: list[JsonValue] = [dt for dt, state in news.closed.items() if state.state == "final_incomplete"]
        columns: list[JsonValue] = list(news.columns)
        for asset, dates, fields in (
            (assets.rows, news.dates, {**extra, "columns_added": columns} if columns else extra),
            (assets.final, tuple(news.closed), {**extra, "incomplete": incomplete}),
        ):
            if dates or (columns and asset is assets.rows):
                outlets.append(asset)
                event = context["outlet_events"][asset]
                if dates:
                    event.add_partitions(list(dates))
                event.extra = fields
            listed = [*dates, *(f"new column {column}" for column in news.columns if asset is assets.rows)]
            log.info("ledger %d: events of %s: %s", news.commit.n, asset.name, ", ".join(listed) or "none")
    return None if news is None else outlets


def result_of(table: TopicTable, attempt: int) -> RunResult:
    """The result that the job wrote."""
    return RunResult.load(table.store, table.keys.result(attempt))


def log_result(result: RunResult) -> None:
    """Write the job's result to the task's log."""
    log.info("attempt %d: %s", result.attempt, result.model_dump_json(exclude={"format", "cluster", "topic", "table"}))
