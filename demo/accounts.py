"""The demo's accounts: acknowledged records compared with the rows of a table, and the time until they were there."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import duckdb
import duckdb_extension_httpfs

from demo.streams import Acknowledged, Stream
from tidemark.endpoints import resolver_of
from tidemark.formats.keys import ControlKeys
from tidemark.formats.raw.watermark_index import merge
from tidemark.formats.table.ledger import Ledger
from tidemark.storage import ClusterStore
from tidemark.store import open_store
from tidemark.table.delta_table import TopicTable, ledger_of, live_files, open_delta, open_topic_table
from tidemark.topics import Deployment


@dataclass
class TopicAccount:
    """One topic's numbers of records; ``waits`` are seconds from acknowledged to queryable, ascending."""

    topic: str
    produced: int
    aborted: int
    landed: int = 0
    missing: int = 0
    duplicate: int = 0
    foreign: int = 0
    by_date: dict[str, int] = field(default_factory=dict)
    waits: Sequence[float] = ()

    @property
    def exact(self) -> bool:
        """True if every acknowledged record is in the table once, and nothing else is."""
        return self.missing == self.duplicate == self.foreign == 0 and self.produced == self.landed

    @property
    def waits_text(self) -> str:
        """The waits' p50, p99 and maximum; p99 is the wait below which 99 % lie."""
        if not self.waits:
            return "-"
        count = len(self.waits)
        shown = (self.waits[max(0, math.ceil(share * count) - 1)] for share in (0.5, 0.99, 1.0))
        return " / ".join(f"{seconds:.0f} s" for seconds in shown)


class Auditor:
    """Reads the store and the tables of a deployment."""

    def __init__(self, deployment: Deployment, env: Mapping[str, str]) -> None:
        """``env`` has the S3 server's address and credentials, see :meth:`tests.support.s3.S3Server.env`."""
        self._deployment = deployment
        raw = resolver_of(deployment.raw).default()
        [cluster] = deployment.clusters
        self._cluster = ClusterStore(open_store(raw.store, deployment.store), ControlKeys(raw.prefix, cluster))
        self.duckdb = prepare_duckdb(duckdb.connect(), env)

    def stored_up_to(self, stream: Stream) -> dict[int, int]:
        """The stored end of each partition, in segments or packs, according to the agents."""
        entries = merge(self._cluster.indexes().kept.values())
        return {tp.partition: entry.least_stored_end for tp, entry in entries.items() if tp.topic == stream.topic}

    def ledger(self, stream: Stream) -> Ledger:
        """The table's newest committed ledger."""
        table = self._table(stream)
        return ledger_of(table, open_delta(table))

    def files(self, stream: Stream) -> list[str]:
        """URLs of the table's live files, like the output of `tidemark files`."""
        table = self._table(stream)
        delta = open_delta(table)
        return [f"{table.url}/{file.path}" for file in live_files(delta)] if delta is not None else []

    def account(self, stream: Stream, acknowledged: Acknowledged) -> TopicAccount:
        """The account of a topic, counted row by row."""
        account = TopicAccount(stream.topic, acknowledged.count, acknowledged.aborted)
        rows = self._rows(stream, account)
        for partition, offsets in acknowledged.committed.items():
            seen = rows.pop(partition, Counter())
            account.missing += len(offsets.keys() - seen.keys())
            account.foreign += len(seen.keys() - offsets.keys())
            account.duplicate += sum(seen.values()) - len(seen)
            account.landed += sum(seen.values())
        account.foreign += sum(len(seen) for seen in rows.values())
        account.waits = sorted(self._waits(stream, acknowledged))
        return account

    def _rows(self, stream: Stream, account: TopicAccount) -> dict[int, Counter[int]]:
        files = self.files(stream)
        if not files:
            return {}
        query = "SELECT kafka_partition, kafka_offset, dt::VARCHAR FROM read_parquet(?, hive_partitioning = true)"
        rows: dict[int, Counter[int]] = {}
        dates: Counter[str] = Counter()
        for partition, offset, dt in self.duckdb.execute(query, [files]).fetchall():
            rows.setdefault(partition, Counter())[offset] += 1
            dates[dt] += 1
        account.by_date = dict(sorted(dates.items()))
        return rows

    def _waits(self, stream: Stream, acknowledged: Acknowledged) -> list[float]:
        """Seconds from each record's acknowledgement to the commit that landed it."""
        landed = landings(self._table(stream))
        return [
            seconds
            for partition, offsets in acknowledged.committed.items()
            for seconds in waits(offsets.items(), landed.get(partition, ()))
        ]

    def _table(self, stream: Stream) -> TopicTable:
        return open_topic_table(self._deployment, self._deployment.topic(stream.topic))


def landed_up_to(ledger: Ledger) -> dict[int, int]:
    """The next offset by partition."""
    return {state.partition: state.next_offset for state in ledger.partitions}


def landings(table: TopicTable) -> dict[int, list[tuple[int, float]]]:
    """The next offset after each commit, with the commit's time (seconds since 1970), by partition."""
    newest_first: dict[int, list[tuple[int, float]]] = {}
    for ledger in _history(table):
        for state in ledger.partitions:
            newest_first.setdefault(state.partition, []).append((state.next_offset, ledger.committed_at.timestamp()))
    return {partition: ends[::-1] for partition, ends in newest_first.items()}


def waits(offsets: Iterable[tuple[int, float]], ends: Sequence[tuple[int, float]]) -> Iterator[float]:
    """Seconds from the time of each of ``offsets`` to the time of the first of the ascending ``ends`` beyond it."""
    for offset, at in offsets:
        first = bisect_right(ends, offset, key=lambda end: end[0])
        if first < len(ends):
            yield ends[first][1] - at


def _history(table: TopicTable) -> list[Ledger]:
    """All committed ledgers, newest first."""
    ledgers = [ledger_of(table, open_delta(table))]
    while (parent := ledgers[-1].parent) is not None:
        key = table.keys.ledger(parent.n, parent.attempt)
        ledgers.append(Ledger.from_bytes(table.store.get(key).body, key))
    return ledgers


def prepare_duckdb(connection: duckdb.DuckDBPyConnection, env: Mapping[str, str]) -> duckdb.DuckDBPyConnection:
    """Load DuckDB's S3 reader, which comes as a wheel, and point it at the server that ``env`` names."""
    [extension] = duckdb_extension_httpfs.__path__
    path = f"{extension}/extensions/v{duckdb.__version__}/httpfs.duckdb_extension"
    connection.execute(f"LOAD '{path}'")
    endpoint = env["AWS_ENDPOINT_URL"].removeprefix("http://")
    connection.execute(
        f"CREATE OR REPLACE SECRET (TYPE s3, KEY_ID '{env['AWS_ACCESS_KEY_ID']}', "
        f"SECRET '{env['AWS_SECRET_ACCESS_KEY']}', REGION '{env['AWS_REGION']}', "
        f"ENDPOINT '{endpoint}', URL_STYLE 'path', USE_SSL false)"
    )
    return connection


def table(accounts: list[TopicAccount]) -> str:
    """The accounts as a table of text."""
    counts = ("produced", "(aborted)", "landed", "missing", "duplicate", "foreign")
    head = ("topic", *counts, "append to queryable: p50 / p99 / longest")
    rows = [
        (
            account.topic,
            f"{account.produced:,}",
            f"{account.aborted:,}",
            f"{account.landed:,}",
            f"{account.missing:,}",
            f"{account.duplicate:,}",
            f"{account.foreign:,}",
            account.waits_text,
        )
        for account in accounts
    ]
    return align([head, *rows])


def answer(result: duckdb.DuckDBPyConnection) -> str:
    """The answer to a query as a table of text."""
    names = tuple(column[0] for column in result.description)
    return align([names, *(tuple(str(value) for value in row) for row in result.fetchall())])


def align(rows: list[tuple[str, ...]]) -> str:
    """Text in aligned columns, the first to the left and the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells))
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines) + "\n"
