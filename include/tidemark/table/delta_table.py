"""Reads a table's Delta log: the committed ledger, the live files. Needs ``tidemark-kafka[table]``.

deltalake is imported when it is first needed, so that the modules that Airflow parses stay light.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple, overload
from urllib.parse import unquote

from tidemark import retry
from tidemark.errors import ConfigError, FormatError, TableTampered
from tidemark.formats.keys import TableKeys
from tidemark.formats.table.ledger import ATTEMPT_TRANSACTION, LEDGER_TRANSACTION, Ledger, Parent
from tidemark.formats.table.partitioning import DT
from tidemark.schemas.merge import with_adopted
from tidemark.store import Store, StoreOptions, open_store
from tidemark.store.obstore.factory import CLOUDS, delta_settings
from tidemark.store.options import LIMITS
from tidemark.store.s3 import credentials as s3_credentials
from tidemark.store.schemes import scheme_of
from tidemark.table.log_copy import LogCopy
from tidemark.topics import Deployment, TopicSettings

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable


class TopicTable(NamedTuple):
    """One topic's table: its location and the way to reach it.

    ``topic`` has the schema that was adopted for it, or that of the version that a rebuild ``accepts``. ``log`` is read
    whenever the table is opened.
    """

    deployment: Deployment
    topic: TopicSettings
    store: Store
    keys: TableKeys
    log: LogCopy
    accepts: int | None = None

    @property
    def url(self) -> str:
        """The table's URL, for any engine: ``s3://lake/tables/orders``."""
        return f"{self.deployment.lake_store}/{self.keys.root}"

    @property
    def delta_options(self) -> dict[str, str]:
        """Storage options with which delta-rs itself reads the lake: past versions, and expired parts of a log.

        They are the lake's location, and S3 credentials if delta-rs would find others.
        """
        options = self.deployment.store
        # delta-rs repeats requests by itself, as often as our own reads; but not for each body that breaks off.
        settings = {
            "max_retries": str(retry.ATTEMPTS - 1),
            "retry_timeout": _milliseconds(retry.SECONDS),
            "backoff_config.init_backoff": _milliseconds(retry.PAUSES.first),
            "backoff_config.max_backoff": _milliseconds(retry.PAUSES.longest),
            "connect_timeout": _milliseconds(LIMITS.connect_timeout.total_seconds()),
            "timeout": _milliseconds(options.deadline.total_seconds()),
        }
        of_scheme = SETTINGS_OF_DELTA.get(scheme_of(self.url))
        return settings | (of_scheme(self.url, options) if of_scheme else {})

    def by_delta_rs(self, version: int | None = None) -> DeltaTable:
        """The table, or a past ``version`` of it, as delta-rs itself reads the lake. Raises its errors."""
        from deltalake import DeltaTable

        with _trusting(os.environ.get("AWS_CA_BUNDLE") if scheme_of(self.url) == "s3" else None):
            return DeltaTable(self.url, version=version, storage_options=self.delta_options)


_trust = threading.Lock()


@contextmanager
def _trusting(authorities: str | None) -> Iterator[None]:
    """Have delta-rs trust the certificates in a file. It has no option for that, and reads SSL_CERT_FILE.

    Only meanwhile: for other clients in this process the variable would replace the system's authorities.
    """
    if not authorities:
        yield
        return
    with _trust:
        before = os.environ.get("SSL_CERT_FILE")
        os.environ["SSL_CERT_FILE"] = authorities
        try:
            yield
        finally:
            del os.environ["SSL_CERT_FILE"]
            if before is not None:
                os.environ["SSL_CERT_FILE"] = before


def _s3_settings(_url: str, options: StoreOptions) -> dict[str, str]:
    if s3_credentials.source() is not None:
        options = s3_credentials.access().reached(options)
    endpoint = options.endpoint_url or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    settings = s3_credentials.delta_credentials()
    if endpoint:
        settings |= {"AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": str(endpoint.startswith("http://")).lower()}
    if options.region:
        settings["AWS_REGION"] = options.region
    return settings


SETTINGS_OF_DELTA: Final[dict[str, Callable[[str, StoreOptions], dict[str, str]]]] = {
    "s3": _s3_settings,
    **dict.fromkeys(CLOUDS, delta_settings),
}
"""Functions from URL and options to the options of delta-rs for the stores of a scheme; none for a directory."""


def _milliseconds(seconds: float) -> str:
    """A time in delta-rs's form: a whole number with its unit."""
    return f"{round(seconds * 1000)}ms"


class LiveFile(NamedTuple):
    """A data file of the table's current version; ``path`` is relative to the table."""

    path: str
    size: int
    rows: int
    dt: str

    @property
    def folder(self) -> str:
        """The path without the name."""
        return self.path.rpartition("/")[0]


def configured_table(deployment: Deployment, topic: TopicSettings) -> TopicTable:
    """The table of ``topic`` as the topics file has it, for callers that do not ask for columns."""
    store = open_store(deployment.lake_store, deployment.store)
    return TopicTable(deployment, topic, store, deployment.table_keys(topic), LogCopy())


def open_topic_table(deployment: Deployment, topic: TopicSettings) -> TopicTable:
    """The table of ``topic``, with the schema adopted for it if it follows a registry's.

    Raises:
        StoreError, FormatError: that schema cannot be read.
    """
    table = configured_table(deployment, topic)
    return table._replace(topic=with_adopted(topic, table.store, table.keys))


def open_delta(table: TopicTable) -> DeltaTable | None:
    """The table at its current version, or None while nothing has landed.

    delta-rs reads only a copy of the log: no data, and no version below the last checkpoint.

    Raises:
        ConfigError: the Delta table there is not Tidemark's.
        StoreError: the store did not answer, or refuses.
        FormatError: the object there is not a Delta log.
    """
    from deltalake.exceptions import DeltaError

    try:
        delta = table.log.look(table.store, table.keys.root)
    except DeltaError as error:
        reason = " ".join(str(error).split())[:200]
        rule = f"cannot be read as a Delta log ({reason}); restore it from a backup, or name another place in the lake"
        raise FormatError(f"{table.url}/_delta_log/", rule) from error
    if delta is not None:
        _check_ours(table, delta)
    return delta


def _check_ours(table: TopicTable, delta: DeltaTable) -> None:
    if delta.transaction_version(LEDGER_TRANSACTION) is not None:
        return  # the table was Tidemark's, even if it was changed since
    if delta.metadata().partition_columns[:1] != [DT] or delta.get_add_actions().num_rows:
        rule = f"{table.url} has a Delta table that Tidemark did not make; give the topic another table, or lake"
        raise ConfigError(f"topic {table.topic.cluster}/{table.topic.topic}", [("table", rule)])


def ledger_of(table: TopicTable, delta: DeltaTable | None) -> Ledger:
    """The ledger that this version of the table names; the genesis if it names none."""
    return stored_ledger(table, delta)[0]


def stored_ledger(table: TopicTable, delta: DeltaTable | None) -> tuple[Ledger, Parent | None]:
    """The result of :func:`ledger_of`, and the next ledger's reference to it; None for the genesis."""
    n = delta.transaction_version(LEDGER_TRANSACTION) if delta is not None else None
    attempt = delta.transaction_version(ATTEMPT_TRANSACTION) if delta is not None else None
    if n is None or attempt is None:
        return Ledger.genesis(table.topic.cluster, table.topic.topic, table.topic.table), None
    known = table.log.ledger
    if known is None or (known[1].n, known[1].attempt) != (n, attempt):
        body = table.store.get(key := table.keys.ledger(n, attempt), limit=Ledger.most_bytes).body
        ledger = Ledger.from_bytes(body, key)
        known = table.log.ledger = ledger, Parent.of(ledger, body)
    return known


def oldest_ledger_in_log(table: TopicTable) -> int:
    """The number of the ledger in the oldest version that Delta's log can still show.

    It is 0 if that version names none, or cannot be opened at the moment.
    """
    from deltalake.exceptions import DeltaError

    folder = f"{table.keys.root}/_delta_log/"
    names = [info.key.removeprefix(folder) for info in table.store.list(folder)]
    # A version can be shown from the first one on, or from a checkpoint on.
    starts = [int(name[:20]) for name in names if name == _FIRST_VERSION or _CHECKPOINT.match(name)]
    try:
        delta = table.by_delta_rs(min(starts)) if starts else None
    except (DeltaError, OSError):
        return 0
    return (delta.transaction_version(LEDGER_TRANSACTION) or 0) if delta is not None else 0


def committed_ledger(table: TopicTable) -> Ledger:
    """The ledger of the table's newest version."""
    return ledger_of(table, open_delta(table))


class LiveFiles(Sequence[LiveFile]):
    """The data files of a version of a table, by path, in Arrow: a table may have a million.

    Each file becomes an object when it is asked for.
    """

    def __init__(self, files: pa.Table) -> None:
        """``files`` has the columns of :class:`LiveFile`, and any order."""
        self._files = files

    @classmethod
    def of(cls, files: Iterable[LiveFile]) -> LiveFiles:
        """These files."""
        import pyarrow as pa

        listed = list(files)
        columns = {name: [file[at] for file in listed] for at, name in enumerate(LiveFile._fields)}
        types: list[Any] = [pa.large_string(), pa.int64(), pa.int64(), pa.string()]
        return cls(pa.table(columns, schema=pa.schema(zip(LiveFile._fields, types, strict=True))))

    def __len__(self) -> int:
        return int(self._files.num_rows)

    @overload
    def __getitem__(self, at: int) -> LiveFile: ...

    @overload
    def __getitem__(self, at: slice) -> list[LiveFile]: ...

    def __getitem__(self, at: int | slice) -> LiveFile | list[LiveFile]:
        numbers = range(len(self))[at]
        if isinstance(numbers, int):
            return next(_objects(self._by_path.slice(numbers, 1)))
        return list(_objects(self._by_path.take(list(numbers))))

    def __iter__(self) -> Iterator[LiveFile]:
        return _objects(self._by_path)

    @cached_property
    def _by_path(self) -> pa.Table:
        return self._files.sort_by("path")

    @cached_property
    def paths(self) -> frozenset[str]:
        """The paths of the files."""
        return frozenset(path for path in self._files["path"].to_pylist() if path is not None)

    @cached_property
    def digest(self) -> str:
        """32 hexadecimal digits for the set of files, in any order: the sum of the files' own digests."""
        import pyarrow as pa
        import pyarrow.compute as pc

        kind = pa.large_string()
        columns = (self._files[name].cast(kind) for name in ("path", "size", "rows"))
        known = (pc.fill_null(column, pa.scalar("None", kind)) for column in columns)
        join: Any = pc.binary_join_element_wise
        texts = join(*known, pa.scalar("\0", kind)).cast(pa.large_binary())
        starts = range(0, len(texts), _AT_A_TIME)
        return _as_digest(sum(_digest_of(text) for at in starts for text in texts.slice(at, _AT_A_TIME).to_pylist()))

    def digest_after(self, removed: Iterable[LiveFile], added: Iterable[LiveFile]) -> str:
        """The :attr:`digest` of the files without ``removed``, which are among them, and with ``added``."""
        return _as_digest(int(self.digest, 16) - _sum_of_digests(removed) + _sum_of_digests(added))

    def named(self, paths: Collection[str]) -> list[LiveFile]:
        """Those of ``paths`` that are among the files, by path."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if not paths:
            return []
        wanted = pa.array(list(paths), pa.large_string())
        return sorted(_objects(self._files.filter(pc.is_in(self._files["path"], wanted))))

    def rows_by_date(self) -> dict[str, int]:
        """The number of rows of each ``dt``."""
        found = self._files.select(["dt", "rows"]).group_by("dt").aggregate([("rows", "sum")]).to_pylist()
        return {row["dt"]: row["rows_sum"] or 0 for row in found}


def _objects(files: pa.Table) -> Iterator[LiveFile]:
    """The rows, of which few are objects at a time."""
    for batch in files.to_batches(max_chunksize=_AT_A_TIME):
        columns = (batch.column(name).to_pylist() for name in LiveFile._fields)
        yield from map(LiveFile._make, zip(*columns, strict=True))


def _sum_of_digests(files: Iterable[LiveFile]) -> int:
    return sum(_digest_of(f"{path}\0{size}\0{rows}".encode()) for path, size, rows, _ in files)


def _digest_of(file: bytes) -> int:
    return int.from_bytes(blake2b(file, digest_size=16).digest(), "big")


def _as_digest(number: int) -> str:
    return f"{number & _MASK:032x}"


def live_files(delta: DeltaTable | None) -> LiveFiles:
    """The files of the table's version; none without a table.

    Raises:
        TableTampered: another program changed the table's partition columns.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if delta is None:
        return LiveFiles.of(())
    actions = delta.get_add_actions(flatten=True)
    names = actions.schema.names
    if not set(names) >= {*_COLUMNS.values()}:
        rule = "is not partitioned by dt any more: not Tidemark changed that; RESTORE it, see docs/tables.md"
        raise TableTampered(f"table {delta.metadata().name}: {rule}")
    as_arrow: Any = pa.chunked_array  # whose types do not know that it reads what Arrow's C interface gives
    columns = {name: as_arrow(actions.column(names.index(of))) for name, of in _COLUMNS.items()}
    columns |= {"path": columns["path"].cast(pa.large_string()), "dt": columns["dt"].cast(pa.string())}
    if pc.any(pc.match_substring(columns["path"], "%")).as_py():
        paths = [path_in_log(path) for path in columns["path"].to_pylist()]
        columns["path"] = pa.chunked_array([pa.array(paths, pa.large_string())])
    return LiveFiles(pa.table(columns))


def live_paths(delta: DeltaTable) -> set[str]:
    """The paths of the files of the table's version."""
    actions = delta.get_add_actions(flatten=True)
    return {path_in_log(str(path)) for path in actions.column(actions.schema.names.index("path")).to_pylist()}


def path_in_log(path: str) -> str:
    """A file's path relative to the table, from the URI in the Delta log."""
    return unquote(path)


_FIRST_VERSION: Final = f"{0:020d}.json"
_CHECKPOINT: Final = re.compile(r"[0-9]{20}\.checkpoint\.", re.ASCII)
_COLUMNS: Final = {"path": "path", "size": "size_bytes", "rows": "num_records", "dt": "partition.dt"}
"""The columns of delta-rs, by those of :class:`LiveFile`."""

_MASK: Final = (1 << 128) - 1

_AT_A_TIME: Final = 4096
"""Live files that are objects at a time, where all of them are read one by one."""
