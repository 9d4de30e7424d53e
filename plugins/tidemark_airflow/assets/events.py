"""How other DAGs are notified about a table: events of two assets, a partition key per date, at least once.

==================  ===================================================================================================
``<table>``         a date's rows have changed: they landed, were rebuilt, or were removed by retention; or, without a
                    partition key, the table has new columns, because its schema follows a registry
``<table>.final``   a date is closed, with these rows: when it first closes, when it closes again after late rows, and
                    when it is rebuilt while it is closed
==================  ===================================================================================================

``extra`` has ``cluster``, ``topic``, the ``ledger`` and its ``attempt`` up to which the event speaks, and the table's
``rows``, and ``columns_added`` if there are any; events of ``<table>.final`` also ``incomplete``, those of their dates
that closed with offsets outstanding.

Airflow stores the events of a task when it stores its success, in one transaction. What it has stored is read back
before anything counts as sent, see :mod:`tidemark_airflow.assets.outbox`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple

from airflow.sdk import Asset
from airflow.sdk.execution_time.context import InletEventsAccessors
from pydantic import JsonValue

from tidemark.formats.plan import RunResult
from tidemark.topics import Deployment, TopicSettings
from tidemark_airflow.assets.outbox import Commit, UnpublishedCommits, unpublished

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tidemark.formats.ledger import Ledger
    from tidemark.table.delta_table import TopicTable
    from tidemark_airflow.planned import Planned

LAST_EVENTS = 20
"""So many of an asset's newest events are looked at: others than ours may be among them, such as a person's."""

log = logging.getLogger(__name__)


class Assets(NamedTuple):
    """A topic's assets: its table's rows, and its table's dates that are closed."""

    rows: Asset
    final: Asset


def assets_of(deployment: Deployment, topic: TopicSettings) -> Assets:
    """The assets of a topic's table, as other DAGs schedule on them."""
    url = f"{deployment.lake_store}/{deployment.table_keys(topic).root}"
    return Assets(
        Asset(name=topic.table, uri=url, group="tidemark"),
        Asset(name=f"{topic.table}.final", uri=f"{url}.final", group="tidemark"),
    )


def stored_commits(assets: Collection[Asset]) -> set[Commit]:
    """The commits that the newest events in Airflow's record of these assets name."""
    record = InletEventsAccessors(list(assets))
    newest = (event for asset in assets for event in record[asset].ascending(False).limit(LAST_EVENTS))
    return {commit for event in newest if (commit := named_by(event.extra)) is not None}


def named_by(extra: Mapping[str, object] | None) -> Commit | None:
    """The commit up to which an event speaks; None if it is not one of ours."""
    ledger, attempt = (extra or {}).get("ledger"), (extra or {}).get("attempt")
    if isinstance(ledger, int) and isinstance(attempt, str) and attempt.isdecimal():
        return Commit(ledger, int(attempt))
    return None


def news_of(table: TopicTable, ledger: Ledger) -> UnpublishedCommits | None:
    """What is committed up to ``ledger`` and not in Airflow's record of events; moves the outbox pointer by that."""
    return unpublished(table, ledger, stored_commits(assets_of(table.deployment, table.topic)))


def publish(context: Context, table: TopicTable, planned: Planned) -> bool:
    """Have Airflow send the events of all that is committed and not sent, when the task succeeds; False if none is.

    Whatever topic the task is about: its outlets are those of ``table``, set here.
    """
    from tidemark.table.delta_table import committed_ledger

    if not planned["empty"]:
        log_result(result_of(table, int(planned["attempt"])))
    outlets = announced(context, table, committed_ledger(table))
    set_outlets(context, outlets or ())
    return outlets is not None


def set_outlets(context: Context, outlets: Collection[Asset]) -> None:
    """Airflow sends an event of each outlet that a task has when it succeeds, whatever it declared."""
    context["ti"].task.outlets = list(outlets)


def announced(context: Context, table: TopicTable, ledger: Ledger) -> list[Asset] | None:
    """The assets of ``table`` for which the task is to have events; None if all up to ``ledger`` is sent."""
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
        for asset, dates, said in (
            (assets.rows, news.dates, {**extra, "columns_added": columns} if columns else extra),
            (assets.final, tuple(news.closed), {**extra, "incomplete": incomplete}),
        ):
            if dates or (columns and asset is assets.rows):
                outlets.append(asset)
                event = context["outlet_events"][asset]
                if dates:
                    event.add_partitions(list(dates))
                event.extra = said
            told = [*dates, *(f"new column {one}" for one in news.columns if asset is assets.rows)]
            log.info("ledger %d: events of %s: %s", news.commit.n, asset.name, ", ".join(told) or "none")
    return None if news is None else outlets


def result_of(table: TopicTable, attempt: int) -> RunResult:
    """What the job said of itself."""
    return RunResult.load(table.store, table.keys.result(attempt))


def log_result(result: RunResult) -> None:
    """Show what the job said of itself."""
    log.info("attempt %d: %s", result.attempt, result.model_dump_json(exclude={"format", "cluster", "topic", "table"}))
