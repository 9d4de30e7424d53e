"""The SQL of a view that is fresher than a state table: its rows, and the newest records of the topic's table.

Printed once, the view stays right, since records that the state has as well do no harm; it only reads more and more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from tidemark.errors import NotFound
from tidemark.formats.table.state_ledger import RECORD, StateLedger
from tidemark.table.delta_table import open_delta
from tidemark.table.state_table import StateTable

if TYPE_CHECKING:
    from deltalake import DeltaTable

Engine = Literal["duckdb", "spark", "trino", "snowflake"]

_NOTE: Final = """\
-- The newest record of each key of {topic}: {state} as of its commit {n}, and what {table} has got since.
-- It stays right when the state moves on; print it anew to read less.
-- A key with records in several partitions may show one that another record outranks, until the next run of the state.
"""


def state_view(table: StateTable, engine: Engine, source: str | None = None, state: str | None = None) -> str:
    """A query in the SQL of ``engine``; ``source`` and ``state`` are the tables' names in it.

    Without them DuckDB and Spark get the tables' addresses, and the others the tables' own names.

    Raises:
        NotFound: the state has no commit yet.
    """
    delta, appended = table.delta(), open_delta(table.of)
    ledger = table.ledger(delta)
    if delta is None or appended is None or ledger is None:
        raise NotFound(table.root, "has no commit yet: run spark/jobs/state.py first")
    quote = "`" if engine == "spark" else '"'
    names = [field.name for field in delta.schema().fields]
    columns = ", ".join(f"{quote}{name}{quote}" for name in names)
    made, deleted = _changes(table, appended, names, quote)
    source = source or _relation(engine, table.of.url, table.of.topic.table)
    state = state or _relation(engine, table.url, table.of.topic.state_table)
    note = _NOTE.format(topic=table.of.topic.topic, state=state, table=source, n=ledger.n)
    fresh = "\n  UNION ALL\n".join(
        f"  SELECT {made}, {deleted} AS deleted_ FROM {source}\n"  # noqa: S608 - as below
        f"  WHERE kafka_key IS NOT NULL{_messages(table, quote)} AND {since}"
        for since in _since(ledger)
    )
    return f"""{note}WITH fresh AS (
{fresh}
), last_of_partition AS (
  SELECT * FROM (
    SELECT fresh.*, row_number() OVER (
      PARTITION BY kafka_key, kafka_incarnation, kafka_partition ORDER BY kafka_offset DESC
    ) AS place_ FROM fresh
  ) ranked WHERE place_ = 1
), rivals AS (
  SELECT {columns}, deleted_ FROM last_of_partition
  UNION ALL
  SELECT {columns}, false AS deleted_ FROM {state} kept
  WHERE EXISTS (SELECT 1 FROM last_of_partition newer WHERE newer.kafka_key = kept.kafka_key)
  AND NOT EXISTS (
    SELECT 1 FROM last_of_partition newer WHERE newer.kafka_key = kept.kafka_key
    AND newer.kafka_incarnation = kept.kafka_incarnation AND newer.kafka_partition = kept.kafka_partition
  )
)
SELECT {columns} FROM {state} kept
WHERE NOT EXISTS (SELECT 1 FROM last_of_partition newer WHERE newer.kafka_key = kept.kafka_key)
UNION ALL
SELECT {columns} FROM (
  SELECT rivals.*, row_number() OVER (
    PARTITION BY kafka_key ORDER BY kafka_incarnation DESC, kafka_timestamp DESC, kafka_partition DESC
  ) AS place_ FROM rivals
) ranked WHERE place_ = 1 AND NOT deleted_
"""  # noqa: S608 - printed for a person, from the settings and the store's own names


def _relation(engine: Engine, url: str, name: str) -> str:
    if engine == "duckdb":
        return f"delta_scan('{url}')"
    return f"delta.`{url.replace('s3://', 's3a://')}`" if engine == "spark" else name


def _since(ledger: StateLedger) -> list[str]:
    """The conditions of rows that are not in the state, each of a form that files' statistics answer."""
    if not ledger.through:
        return ["true"]
    parts = " OR ".join(
        f"(kafka_incarnation = {through.incarnation} AND kafka_partition = {through.partition} "
        f"AND kafka_offset >= {through.next_offset})"
        for through in ledger.through
    )
    first = min(through.next_offset for through in ledger.through)
    newest = max(through.incarnation for through in ledger.through)
    last = max(through.partition for through in ledger.through if through.incarnation == newest)
    return [
        f"kafka_offset >= {first} AND ({parts})",
        f"kafka_incarnation > {newest}",
        f"kafka_incarnation = {newest} AND kafka_partition > {last}",
    ]


def _changes(table: StateTable, appended: DeltaTable, names: list[str], quote: str) -> tuple[str, str]:
    """The state's columns of a record, and the condition that it deletes its key."""
    topic = table.of.topic
    assert topic.state is not None
    debezium = topic.state.envelope == "debezium"
    kinds: dict[str, Any] = {field.name: field.type for field in appended.schema().fields}
    nested = debezium and hasattr(kinds.get("after"), "fields")
    made = [
        f"{quote}after{quote}.{quote}{name}{quote} AS {quote}{name}{quote}"
        if nested and name not in RECORD
        else f"{quote}{name}{quote}"
        for name in names
    ]
    deleted = f"({quote}op{quote} IS NULL OR {quote}op{quote} = 'd')" if debezium else "kafka_value IS NULL"
    return ", ".join(made), deleted


def _messages(table: StateTable, quote: str) -> str:
    """The condition that leaves out Debezium's messages, which change no key."""
    topic = table.of.topic
    if topic.state is None or topic.state.envelope != "debezium":
        return ""
    return f" AND ({quote}op{quote} IS NULL OR {quote}op{quote} <> 'm')"
