"""The records that a topic's parser refused and that still wait: how many, why, and examples. Needs pyarrow.

A replay leaves the files that it has replaced below the quarantine's folder for a while. Only the files that the
evidence in force names count here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Literal

from pydantic import AwareDatetime

from tidemark.backfill.preview import ReasonPreview
from tidemark.errors import NotFound
from tidemark.formats.base import Model
from tidemark.formats.table.schema_state import SchemaState
from tidemark.kafka_log.batch import read_header
from tidemark.parsers.settings import FollowingParser
from tidemark.schemas.merge import read_state
from tidemark.store.stored_file import StoredFile
from tidemark.table.delta_table import TopicTable
from tidemark.table.effective_evidence import EffectiveEvidence
from tidemark.words import start_of

if TYPE_CHECKING:
    import pyarrow as pa

EXAMPLES: Final = 3
"""Examples of each reason and schema."""

_MOST_REASONS: Final = 200
"""Reasons told apart: a parser of one's own may give each record another one. The rest are ``other reasons``."""

_VALUE: Final = 80
"""Characters shown of a value."""

_ROWS: Final = 1024
_PLACE: Final = ("kafka_incarnation", "kafka_partition", "kafka_offset", "next_offset")
_COLUMNS: Final = (*_PLACE, "timestamp_ms", "kafka_value", "kafka_headers", "batch", "reason")


class QuarantinedExample(Model):
    """A refused record, or a batch that cannot be decoded: the offsets ``[start, end)`` of a partition.

    ``timestamp_ms`` is the record's own, in milliseconds since 1970, whatever the producer wrote. ``value`` is the
    start of the value as text, with escapes for other bytes; None for a batch, a null value, or if it is not shown.
    """

    kind: Literal["record", "batch"]
    incarnation: int
    partition: int
    start: int
    end: int
    timestamp_ms: int | None
    value: str | None


class QuarantinedReason(ReasonPreview):
    """Refused records, and the first of them."""

    examples: tuple[QuarantinedExample, ...]


class Quarantine(Model):
    """The quarantine of a topic at a ledger: ``records`` in all, by date (ISO, empty for none), by reason and schema.

    ``files`` are the URLs of the files that count, the newest first. Only the first ``files_read`` of them were read:
    ``reasons``, the most frequent first, are of these. Evidence names the ``lost`` files, which are not in the store.
    """

    cluster: str
    topic: str
    ledger_n: int
    committed_at: AwareDatetime | None
    records: int
    dates: dict[str, int]
    files: tuple[str, ...]
    files_read: int
    lost: tuple[str, ...]
    reasons: tuple[QuarantinedReason, ...]


def quarantine_of(
    table: TopicTable,
    standing: EffectiveEvidence,
    wanted: Callable[[str], bool] = lambda _: True,
    *,
    most_files: int | None = None,
    values: bool = True,
) -> Quarantine:
    """The quarantined records of the ``wanted`` dates (ISO, empty for records without one).

    At most ``most_files`` files are read, a piece at a time. Without ``values`` the examples have none.

    Raises:
        StoreError: the store failed, or refuses to read the quarantine.
    """
    dates: Counter[str] = Counter()
    names: dict[str, None] = {}
    for row in standing.of_class("quarantined"):
        if row.file is not None and wanted(row.day):
            dates[row.day] += row.rows
            names[row.file] = None
    files = [*reversed(names)]
    framed = isinstance(table.topic.parser, FollowingParser) and table.topic.parser.framing != "none"
    found = _Found(framed=framed, values=values)
    lost = [name for name in files[:most_files] if not _read(table, name, found)]
    ledger = standing.ledger
    folder = f"{table.deployment.lake_store}/{table.keys.quarantine}"
    return Quarantine(
        cluster=table.topic.cluster,
        topic=table.topic.topic,
        ledger_n=ledger.n,
        committed_at=ledger.committed_at,
        records=dates.total(),
        dates=dict(sorted(dates.items())),
        files=tuple(f"{folder}/{name}" for name in files),
        files_read=len(files[:most_files]),
        lost=tuple(f"{folder}/{name}" for name in lost),
        reasons=tuple(found.reasons(_versions(table))),
    )


def _versions(table: TopicTable) -> dict[str, int]:
    """The versions of the schemas that the topic has adopted, or may adopt, by their number in the registry."""
    stored = read_state(table.store, table.keys)
    state: SchemaState | None = stored.value if stored else None
    if state is None:
        return {}
    known = [*state.history, state.adopted, state.newest, *([state.proposal] if state.proposal else [])]
    return {str(each.number): each.version for each in known}


_Kind = tuple[str, str | None]
"""A reason, and the schema that the records name."""


class _Found:
    """What the files read so far hold. ``framed``: the topic's records name their schemas; ``values``: show values."""

    def __init__(self, *, framed: bool, values: bool) -> None:
        self.framed, self.values = framed, values
        self._records: Counter[_Kind] = Counter()
        self._examples: dict[_Kind, list[QuarantinedExample]] = {}

    def add(self, rows: pa.RecordBatch) -> None:
        """Count the rows of a file."""
        schemas = _schemas(rows) if self.framed else {}
        columns = {name: rows.column(name) for name in _COLUMNS}
        for at in range(len(rows)):
            batch = columns["batch"][at].as_py()
            kind: _Kind = columns["reason"][at].as_py(), schemas.get(at)
            if len(self._records) >= _MOST_REASONS and kind not in self._records:
                kind = "other reasons", None
            start, end = columns["kafka_offset"][at].as_py(), columns["next_offset"][at].as_py()
            self._records[kind] += 1 if batch is None else _records(batch, start, end)
            examples = self._examples.setdefault(kind, [])
            if len(examples) < EXAMPLES:
                incarnation, partition, *_ = (columns[name][at].as_py() for name in _PLACE)
                stamp, value = columns["timestamp_ms"][at].as_py(), columns["kafka_value"][at].as_py()
                examples.append(
                    QuarantinedExample(
                        kind="record" if batch is None else "batch",
                        incarnation=incarnation,
                        partition=partition,
                        start=start,
                        end=end,
                        timestamp_ms=stamp,
                        value=start_of(value, _VALUE) if self.values and value is not None else None,
                    )
                )

    def reasons(self, versions: dict[str, int]) -> Iterator[QuarantinedReason]:
        """The reasons, the most frequent first."""
        for (reason, schema), records in sorted(self._records.items(), key=lambda entry: (-entry[1], str(entry[0]))):
            yield QuarantinedReason(
                reason=reason,
                schema_id=schema,
                schema_version=versions.get(schema or ""),
                records=records,
                examples=tuple(self._examples[reason, schema]),
            )


def _read(table: TopicTable, name: str, found: _Found) -> bool:
    """Add the rows of a file to what was ``found``; False if the file is not there."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    key = f"{table.keys.quarantine}/{name}"
    try:
        with StoredFile(table.store, key, table.store.head(key).size) as file:
            parquet = pq.ParquetFile(pa.PythonFile(file, "r"), pre_buffer=True)  # else a request for each column
            for rows in parquet.iter_batches(_ROWS, columns=list(_COLUMNS), use_threads=False):
                found.add(rows)
    except NotFound:
        return False
    return True


def _schemas(rows: pa.RecordBatch) -> dict[int, str]:
    """The number or GUID of the schema that each row names, by row."""
    from tidemark.parsers.confluent_framing import framed_values, guid_of, numbered

    at, numbers = numbered(framed_values(rows, "value"))
    named = zip(at.tolist(), numbers.tolist(), strict=True)
    return {row: str(guid_of(number) or number) for row, number in named}


def _records(batch: bytes, start: int, end: int) -> int:
    """The number of offsets that a batch accounts for, as its evidence counts them."""
    count = read_header(batch, 0, 0).record_count
    return count if count >= 0 else end - start
