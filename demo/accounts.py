"""The demo's accounts: what producers were told is written, against what is stored and what a table holds."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

import duckdb
import duckdb_extension_httpfs

from demo.streams import Acknowledged, Stream
from tidemark.endpoints import resolver_of
from tidemark.errors import NotFound
from tidemark.formats import watermark
from tidemark.formats.keys import PartitionKeys
from tidemark.formats.ledger import Ledger
from tidemark.formats.manifest import SegmentManifest
from tidemark.store import open_store
from tidemark.table.delta_table import TopicTable, ledger_of, live_files, open_delta, open_topic_table
from tidemark.topics import Deployment


@dataclass
class Account:
    """One topic's numbers, in records; ``freshness`` is rotation to queryable, in seconds, by segment."""

    topic: str
    produced: int
    aborted: int
    uploaded: int = 0
    active: int = 0
    landed: int = 0
    missing: int = 0
    duplicate: int = 0
    foreign: int = 0
    by_date: dict[str, int] = field(default_factory=dict)
    freshness: list[float] = field(default_factory=list)

    @property
    def exact(self) -> bool:
        """Whether every acknowledged record is in exactly one place, and nothing else is in the table."""
        nothing_wrong = self.missing == self.duplicate == self.foreign == 0
        return nothing_wrong and self.produced == self.landed + self.active

    @property
    def freshness_text(self) -> str:
        """p50 and maximum."""
        if not self.freshness:
            return "-"
        return f"{statistics.median(self.freshness):.0f} s / {max(self.freshness):.0f} s"


class Auditor:
    """Reads the store and the tables of a deployment."""

    def __init__(self, deployment: Deployment, env: Mapping[str, str]) -> None:
        """``env`` has the S3 server's address and credentials, see :meth:`tests.support.s3.S3Server.env`."""
        self._deployment = deployment
        self._raw = open_store(resolver_of(deployment.raw).default().store, deployment.store)
        self.duckdb = prepare_duckdb(duckdb.connect(), env)

    def stored_up_to(self, stream: Stream) -> dict[int, int]:
        """The contiguous end in the store by partition."""
        ends: dict[int, int] = {}
        for partition in range(stream.partitions):
            keys = self._keys(stream, partition)
            try:
                _, line = watermark.parse(self._raw.get(keys.watermark).body, keys.watermark)
            except NotFound:
                continue
            ends[partition] = line.next_offset if line else 0
        return ends

    def ledger(self, stream: Stream) -> Ledger:
        """The table's newest committed ledger."""
        table = self._table(stream)
        return ledger_of(table, open_delta(table))

    def first_landed(self, stream: Stream) -> datetime | None:
        """When the first commit with rows was made; None without one."""
        table = self._table(stream)
        return min((ledger.committed_at for ledger in _history(table) if ledger.rows), default=None)

    def files(self, stream: Stream) -> list[str]:
        """URLs of the table's live files, as `tidemark files` gives them."""
        table = self._table(stream)
        delta = open_delta(table)
        return [f"{table.url}/{file.path}" for file in live_files(delta)] if delta is not None else []

    def account(self, stream: Stream, acknowledged: Acknowledged) -> Account:
        """All numbers of a topic, row by row."""
        account = Account(stream.topic, acknowledged.count, acknowledged.aborted)
        stored, landed = self.stored_up_to(stream), landed_up_to(self.ledger(stream))
        rows = self._rows(stream, account)
        for partition, offsets in acknowledged.committed.items():
            seen = rows.pop(partition, Counter())
            account.uploaded += sum(offset < stored.get(partition, 0) for offset in offsets)
            account.active += sum(offset >= stored.get(partition, 0) for offset in offsets)
            account.missing += sum(offset < landed.get(partition, 0) and offset not in seen for offset in offsets)
            account.foreign += len(seen.keys() - set(offsets))
            account.duplicate += sum(seen.values()) - len(seen)
            account.landed += sum(seen.values())
        account.foreign += sum(len(seen) for seen in rows.values())
        account.freshness = self._freshness(stream)
        return account

    def _rows(self, stream: Stream, account: Account) -> dict[int, Counter[int]]:
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

    def _freshness(self, stream: Stream) -> list[float]:
        """Seconds from a segment's rotation to the commit that landed its last record."""
        table = self._table(stream)
        commits = list(_history(table))
        found: list[float] = []
        for partition in range(stream.partitions):
            for manifest in self._manifests(stream, partition):
                done = [
                    ledger.committed_at
                    for ledger in commits
                    if (state := ledger.by_partition.get((0, partition))) and state.next_offset >= manifest.next_offset
                ]
                if manifest.rotated_at is not None and done:
                    found.append((min(done) - manifest.rotated_at).total_seconds())
        return found

    def _manifests(self, stream: Stream, partition: int) -> list[SegmentManifest]:
        keys = self._keys(stream, partition)
        names = [item.key for item in self._raw.list(keys.folder) if item.key.endswith(".manifest.json")]
        return [SegmentManifest.from_bytes(self._raw.get(name).body, name) for name in names]

    def _keys(self, stream: Stream, partition: int) -> PartitionKeys:
        cluster = self._deployment.topic(stream.topic).cluster
        endpoint = resolver_of(self._deployment.raw).resolve(cluster, stream.topic, partition)
        return PartitionKeys(endpoint, cluster, stream.topic, partition)

    def _table(self, stream: Stream) -> TopicTable:
        return open_topic_table(self._deployment, self._deployment.topic(stream.topic))


def landed_up_to(ledger: Ledger) -> dict[int, int]:
    """The next offset by partition."""
    return {state.partition: state.next_offset for state in ledger.partitions}


def _history(table: TopicTable) -> list[Ledger]:
    """All committed ledgers, newest first."""
    found = [ledger_of(table, open_delta(table))]
    while (parent := found[-1].parent) is not None:
        key = table.keys.ledger(parent.n, parent.attempt)
        found.append(Ledger.from_bytes(table.store.get(key).body, key))
    return found


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


def table(accounts: list[Account]) -> str:
    """The accounts as a table of text."""
    counts = ("produced", "(aborted)", "uploaded", "still active", "landed", "missing", "duplicate", "foreign")
    head = ("topic", *counts, "rotation to queryable, p50 / max")
    rows = [
        (
            one.topic,
            f"{one.produced:,}",
            f"{one.aborted:,}",
            f"{one.uploaded:,}",
            f"{one.active:,}",
            f"{one.landed:,}",
            f"{one.missing:,}",
            f"{one.duplicate:,}",
            f"{one.foreign:,}",
            one.freshness_text,
        )
        for one in accounts
    ]
    return align([head, *rows])


def align(rows: list[tuple[str, ...]]) -> str:
    """Columns of text, the first to the left and the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells))
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines) + "\n"
