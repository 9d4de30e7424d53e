"""The SQL of a view that is fresher than a state table: its rows, and the newest records of the topic's table.

Printed once, the view stays right, since records that the state has as well do no harm; it only reads more and more.
At a record that stops the state the query fails, too. A truncation that the state follows is followed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from tidemark.errors import NotFound
from tidemark.formats.table.state_ledger import RECORD, StateLedger
from tidemark.table.delta_table import open_delta
from tidemark.table.state_envelopes import ENVELOPES, before_columns
from tidemark.table.state_table import StateTable

if TYPE_CHECKING:
    from deltalake import DeltaTable

Engine = Literal["duckdb", "spark", "trino", "snowflake"]

_FRAME: Final[dict[Engine, tuple[str, str]]] = {
    "duckdb": ("octet_length({0}) >= 5 AND hex({0}[1:1]) = '00'", "{0}[6:]"),
    "spark": ("octet_length({0}) >= 5 AND hex(substr({0}, 1, 1)) = '00'", "substr({0}, 6)"),
    "trino": ("length({0}) >= 5 AND to_hex(substr({0}, 1, 1)) = '00'", "substr({0}, 6)"),
    "snowflake": ("length({0}) >= 5 AND hex_encode(substr({0}, 1, 1)) = '00'", "substr({0}, 6)"),
}
"""By engine, the condition that a key begins with Confluent's frame, and the key without it."""

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
    sql = _Words(table, engine, appended, ledger, [field.name for field in delta.schema().fields])
    source = source or _relation(engine, table.of.url, table.of.topic.table)
    state = state or _relation(engine, table.url, table.of.topic.state_table)
    note = _NOTE.format(topic=table.of.topic.topic, state=state, table=source, n=ledger.n)
    fresh = "\n  UNION ALL\n".join(
        f"  SELECT {sql.made}, {sql.deleted} AS deleted_{sql.effect} FROM {source}\n"  # noqa: S608 - as below
        f"  WHERE {sql.counts} AND {since}"
        for since in sql.since
    )
    return f"""{note}WITH fresh AS (
{fresh}
){sql.truncation}, rivals AS (
  SELECT {sql.columns}, deleted_ FROM fresh{sql.only_changes}
  UNION ALL
  SELECT {sql.columns}, false AS deleted_ FROM {state} kept
  WHERE EXISTS (SELECT 1 FROM fresh newer WHERE {sql.same_key})
), last_of_partition AS (
  SELECT * FROM (
    SELECT rivals.*, row_number() OVER (
      PARTITION BY {sql.key}, kafka_incarnation, kafka_partition ORDER BY {sql.order}kafka_offset DESC
    ) AS place_ FROM rivals
  ) ranked WHERE place_ = 1
), newest AS (
  SELECT {sql.columns} FROM {state} kept
  WHERE NOT EXISTS (SELECT 1 FROM fresh newer WHERE {sql.same_key})
  UNION ALL
  SELECT {sql.columns} FROM (
    SELECT {sql.columns}, deleted_, row_number() OVER (
      PARTITION BY {sql.key}
      ORDER BY {sql.order}kafka_incarnation DESC, kafka_timestamp DESC, kafka_partition DESC
    ) AS place_ FROM last_of_partition
  ) ranked WHERE place_ = 1 AND NOT deleted_
)
SELECT {sql.columns_of_newest} FROM newest{sql.after_truncation}
"""  # noqa: S608 - printed for a person, from the settings and the store's own names


class _Words:
    """The parts of the query that depend on the topic's settings and on the engine."""

    def __init__(
        self, table: StateTable, engine: Engine, appended: DeltaTable, ledger: StateLedger, names: list[str]
    ) -> None:
        settings = table.of.topic.state
        assert settings is not None
        self._engine, self._settings = engine, settings
        self._envelope = ENVELOPES.get(settings.envelope)
        self._before = before_columns(table.of.topic)
        self._kinds: dict[str, Any] = {field.name: field.type for field in appended.schema().fields}
        self._ledger = ledger
        self.columns = ", ".join(map(self._quote, names))
        self.columns_of_newest = ", ".join(f"newest.{self._quote(name)}" for name in names)
        self.made = ", ".join(f"{self._source(name)} AS {self._quote(name)}" for name in names)
        self.key = ", ".join(self._key(name, "") for name in settings.key)
        self.same_key = " AND ".join(
            f"{self._key(name, 'newer.')} = {self._key(name, 'kept.')}" for name in settings.key
        )
        self.order = "".join(f"{self._quote(name)} DESC NULLS LAST, " for name in settings.order_columns)

    @property
    def deleted(self) -> str:
        """The condition that a record deletes its key."""
        if self._envelope is None:
            return "kafka_value IS NULL"
        return f"({self._tombstone} OR {self._quote(self._envelope.op)} = '{self._envelope.deletes}')"

    @property
    def _tombstone(self) -> str:
        """The condition that a record has no value. Where the table has no values, only such a one has no operation."""
        assert self._envelope is not None
        value = "kafka_value" if "kafka_value" in self._kinds else self._envelope.op
        return f"{self._quote(value)} IS NULL"

    @property
    def counts(self) -> str:
        """The condition that a record has a key, and changes its row."""
        whole = [f"{self._source(name)} IS NOT NULL" for name in self._settings.key]
        if self._envelope is not None:
            whole.append(self._changes)
        counts = " AND ".join(whole)
        beside = [*self._stops, *([self._truncates] if self._envelope and self._envelope.truncates else [])]
        return f"({' OR '.join([counts, *beside])})" if beside else counts

    @property
    def _changes(self) -> str:
        """The condition that a record of the envelope changes the row of its key."""
        assert self._envelope is not None
        words = ", ".join(f"'{word}'" for word in self._envelope.changes)
        tombstones = "" if self._settings.order or self._settings.key != ("kafka_key",) else f"{self._tombstone} OR "
        return f"({tombstones}{self._quote(self._envelope.op)} IN ({words}))"

    @property
    def _truncates(self) -> str:
        assert self._envelope is not None
        op = self._quote(self._envelope.op)
        return f"({op} IS NOT NULL AND {op} = '{self._envelope.truncates}')"

    @property
    def _stops(self) -> list[str]:
        """The conditions that a record stops the state."""
        lacking = [*self._settings.key] if self._settings.key != ("kafka_key",) else []
        lacking += self._settings.order_columns
        stops = []
        if lacking:
            deletes = self.deleted if self._envelope is None else f"{self._changes} AND {self.deleted}"
            none = " OR ".join(f"{self._source(name)} IS NULL" for name in lacking)
            stops.append(f"({deletes} AND ({none}))")
        if self._envelope is not None and self._envelope.truncates:
            none = "".join(f" OR {self._source(name)} IS NULL" for name in self._settings.order_columns)
            unordered = [f"kafka_incarnation = {number}" for number in self._parted]
            if unordered or none:
                stops.append(f"({self._truncates} AND ({' OR '.join([*unordered, none[4:]] if none else unordered)}))")
        return stops

    @property
    def _parted(self) -> list[int]:
        """The incarnations with several partitions, of which no truncation is followed."""
        known = [through.incarnation for through in self._ledger.through]
        return sorted({number for number in known if known.count(number) > 1})

    @property
    def effect(self) -> str:
        """A column that says whether a record truncates the table; to compute it fails for one that stops the state."""
        truncates = self._truncates if self._envelope is not None and self._envelope.truncates else "false"
        if not self._stops:
            return "" if truncates == "false" else f", {truncates} AS truncates_"
        fails = self._fails("stops the state, see spark/jobs/state.py")
        return f", CASE WHEN {' OR '.join(self._stops)} THEN {fails} ELSE {truncates} END AS truncates_"

    def _fails(self, rule: str) -> str:
        """An expression that fails where it is computed."""
        if self._engine == "spark":
            return f"CAST(raise_error(concat('the record at offset ', kafka_offset, ' {rule}')) AS BOOLEAN)"
        return f"CAST('the record at offset ' || CAST(kafka_offset AS VARCHAR) || ' {rule}' AS BOOLEAN)"

    @property
    def only_changes(self) -> str:
        """The filter of fresh records that change a key."""
        return " WHERE NOT truncates_" if self.effect else ""

    @property
    def truncation(self) -> str:
        """The newest fresh truncation, which fails if its incarnation has got more partitions."""
        if self._envelope is None or not self._envelope.truncates:
            return ""
        order = "".join(f"{self._quote(name)}, " for name in self._settings.order_columns)
        place = "kafka_incarnation, kafka_partition, kafka_offset"
        known = self._ledger.truncated
        parted = "least_ < most_"
        if known is not None:
            parted += f" AND NOT (kafka_incarnation = {known.incarnation} AND kafka_offset = {known.offset})"
        fails = self._fails("truncates the table, and has no order with other partitions")
        return f""", truncation AS (
  SELECT {order}{place}, CASE WHEN {parted} THEN {fails} ELSE true END AS ordered_
  FROM (
    SELECT spread.*, row_number() OVER (
      ORDER BY {self.order}kafka_incarnation DESC, kafka_offset DESC
    ) AS place_ FROM (
      SELECT fresh.*, min(kafka_partition) OVER (PARTITION BY kafka_incarnation) AS least_,
        max(kafka_partition) OVER (PARTITION BY kafka_incarnation) AS most_ FROM fresh
    ) spread WHERE truncates_
  ) ranked WHERE place_ = 1
)"""  # noqa: S608 - as above

    @property
    def after_truncation(self) -> str:
        """The filter of rows that the newest fresh truncation leaves."""
        if not self.truncation:
            return ""
        before = (
            "newest.kafka_incarnation < cut.kafka_incarnation OR (newest.kafka_incarnation = cut.kafka_incarnation "
            "AND newest.kafka_partition = cut.kafka_partition AND newest.kafka_offset < cut.kafka_offset)"
        )
        for name in reversed([self._quote(name) for name in self._settings.order_columns]):
            before = (
                f"newest.{name} IS NULL OR newest.{name} < cut.{name} OR (newest.{name} = cut.{name} AND ({before}))"
            )
        return f"\nLEFT JOIN truncation cut ON cut.ordered_\nWHERE cut.kafka_offset IS NULL OR NOT ({before})"

    @property
    def since(self) -> list[str]:
        """The conditions of rows that are not in the state, each of a form that files' statistics answer."""
        found, known = _since(self._ledger), self._ledger.truncated
        if known is not None and self._settings.order:  # records to come may be before it
            found.append(
                f"kafka_incarnation = {known.incarnation} AND kafka_partition = {known.partition} "
                f"AND kafka_offset = {known.offset}"
            )
        return found

    def _key(self, name: str, of: str) -> str:
        """A column of the key; a ``kafka_key`` without its frame if it has one."""
        column = f"{of}{self._quote(name)}"
        if self._settings.framing is None:
            return column
        head, rest = _FRAME[self._engine]
        return f"CASE WHEN {head.format(column)} THEN {rest.format(column)} ELSE {column} END"

    def _source(self, name: str) -> str:
        """The state's column ``name`` of a record."""
        paths = dict(zip(self._settings.order_columns, self._settings.order, strict=True))
        row = self._fields(self._envelope.row) if self._envelope else ()
        if self._envelope is None or name not in row or name in RECORD:
            path = name if name in self._kinds else paths.get(name, name)
            value = self._path(path if path in self._kinds else path.split("."))
            if name in self._before:
                value = f"CASE WHEN {self.deleted} THEN {self._path(self._before[name])} ELSE {value} END"
            return value
        value = self._path([self._envelope.row, name])
        if name in self._settings.key and name in self._fields(self._envelope.before):
            before = self._path([self._envelope.before, name])
            value = f"CASE WHEN {self.deleted} THEN {before} ELSE {value} END"
        return value

    def _fields(self, column: str) -> tuple[str, ...]:
        """The fields of a column that is a struct."""
        return tuple(field.name for field in getattr(self._kinds.get(column), "fields", ()))

    def _path(self, names: str | list[str]) -> str:
        column, *fields = [names] if isinstance(names, str) else names
        if self._engine == "snowflake" and fields:  # they have the case that they were written with
            return f"{self._quote(column)}:" + ".".join(f'"{field}"' for field in fields)
        return ".".join(map(self._quote, (column, *fields)))

    def _quote(self, name: str) -> str:
        """A column. Snowflake's have capitals, as names without quotes have there."""
        if self._engine == "spark":
            return f"`{name}`"
        return f'"{name.upper()}"' if self._engine == "snowflake" else f'"{name}"'


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
