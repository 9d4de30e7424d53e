"""A table's Delta log, read: which ledger is committed, which files are live. Needs the extra ``tidemark[table]``.

deltalake is imported when it is first needed, so that what Airflow parses stays light.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from tidemark.layout import TableKeys
from tidemark.ledger import ATTEMPT_TRANSACTION, LEDGER_TRANSACTION, Ledger
from tidemark.store import Store, open_store
from tidemark.topics import Deployment, TopicSettings

if TYPE_CHECKING:
    from deltalake import DeltaTable


class Lake(NamedTuple):
    """One topic's table: where it lies and how to reach it."""

    deployment: Deployment
    topic: TopicSettings
    store: Store
    keys: TableKeys

    @property
    def url(self) -> str:
        """The table's URL, for any engine: ``s3://lake/tables/orders``."""
        return f"{self.deployment.lake_store}/{self.keys.root}"

    @property
    def delta_options(self) -> dict[str, str]:
        """delta-rs's storage options; credentials come from the environment, as for boto3."""
        options = self.deployment.store
        endpoint = options.endpoint_url or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        found: dict[str, str] = {}
        if endpoint:
            found["AWS_ENDPOINT_URL"] = endpoint
            found["AWS_ALLOW_HTTP"] = str(endpoint.startswith("http://")).lower()
        if options.region:
            found["AWS_REGION"] = options.region
        return found


class LiveFile(NamedTuple):
    """A data file of the table's current version; ``path`` is relative to the table."""

    path: str
    size: int
    rows: int
    dt: str


def open_lake(deployment: Deployment, topic: TopicSettings) -> Lake:
    """The table of ``topic``."""
    return Lake(deployment, topic, open_store(deployment.lake_store, deployment.store), deployment.table_keys(topic))


def open_table(lake: Lake) -> DeltaTable | None:
    """The table at its current version, or None while nothing has landed."""
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    try:
        return DeltaTable(lake.url, storage_options=lake.delta_options)
    except TableNotFoundError:
        return None


def ledger_of(lake: Lake, table: DeltaTable | None) -> Ledger:
    """The ledger that ``table``'s version names; the genesis if it names none."""
    n = table.transaction_version(LEDGER_TRANSACTION) if table is not None else None
    attempt = table.transaction_version(ATTEMPT_TRANSACTION) if table is not None else None
    if n is None or attempt is None:
        return Ledger.genesis(lake.topic.cluster, lake.topic.topic, lake.topic.table)
    key = lake.keys.ledger(n, attempt)
    return Ledger.from_bytes(lake.store.get(key).body, key)


def committed_ledger(lake: Lake) -> Ledger:
    """What the table holds now."""
    return ledger_of(lake, open_table(lake))


def live_files(table: DeltaTable) -> list[LiveFile]:
    """The files of the table's version, by path."""
    actions = table.get_add_actions(flatten=True)
    names = actions.schema.names
    columns = {name: actions.column(names.index(name)).to_pylist() for name in names if name in _WANTED}
    rows = zip(columns["path"], columns["size_bytes"], columns["num_records"], columns["partition.dt"], strict=True)
    return sorted(LiveFile(path, size, count, str(dt)) for path, size, count, dt in rows)


_WANTED = {"path", "size_bytes", "num_records", "partition.dt"}
