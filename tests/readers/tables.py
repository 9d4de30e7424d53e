"""The tables that readers are asked about, each in another state; Tidemark makes them in a directory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from deltalake import DeltaTable

from tests.readers.parsing import SETS, row_of, settings
from tests.readers.truth import FOLDERS, ROW, Asked, Row, questions
from tests.spark.compaction.test_compaction import merge
from tests.spark.convert.test_parsers import again
from tests.spark.erasing.masked import erase, take_out
from tests.spark.mirror.catalogs import sql_catalog
from tests.spark.state.replay import LEAF
from tests.spark.world import World, in_process
from tests.tidemark.kafka_log.build import T0, Record, batch
from tidemark.cli.read_models import files_of
from tidemark.planning import plan_rebuild
from tidemark.table.state_table import StateTable
from tidemark_spark.mirror.catalog import open_catalog
from tidemark_spark.mirror.listed_table import ListedState, ListedTable
from tidemark_spark.mirror.mirror import mirror
from tidemark_spark.mirror.mirrored_table import MirroredTable
from tidemark_spark.run import delta_log
from tidemark_spark.state.run import run_state

ROWS: Final = 40
"""Rows of a landing, on two dates."""

KEYS: Final = 24
HALF: Final = timedelta(hours=12)
START: Final = datetime.fromtimestamp(T0 / 1000, UTC)
BASE: Final[Mapping[str, str]] = {
    "kafka_partition": "int32",
    "kafka_offset": "int64",
    "kafka_timestamp": "timestamp(us)",
    "kafka_timestamp_type": "string",
    "kafka_key": "binary",
    "dt": "date",
}


class Lake:
    """A topic's table in a directory, and the rows that were sent."""

    def __init__(self, root: Path, *lines: str, parser: str = "usual") -> None:
        """Nothing is landed yet."""
        self.parser, self.rows = parser, list[dict[str, Any]]()
        self.root, self._lines = root, lines
        self.world = World(root, *lines, settings(parser))

    def changed(self, parser: str) -> Lake:
        """The same topic with another parser."""
        other = Lake(self.root, *self._lines, parser=parser)
        other.world.raw, other.rows = self.world.raw, self.rows
        return other

    def land(self, prefix: str = "") -> None:
        """Land :data:`ROWS` more records."""
        first = len(self.rows)
        records = []
        for number in range(first, first + ROWS):
            at = START + number % 4 // 2 * 2 * HALF
            value = b"%s%d" % (prefix.encode(), number)
            key = b"key-%d" % (number % KEYS)
            records.append(Record(number - first, round(at.timestamp() * 1000), key, value))
            base = {
                "kafka_partition": 0,
                "kafka_offset": number,
                "kafka_timestamp": at,
                "kafka_timestamp_type": "create",
                "kafka_key": key,
                "dt": at.date(),
            }
            self.rows.append({**base, **row_of(value, SETS[self.parser])})
        self.world.raw.segment([batch(first, records)])
        self.world.land()

    def asked(self, name: str, *, state: bool = False) -> Asked:
        """The table, or its state table, with all questions; it is listed in a catalog, too."""
        columns, table = SETS[self.parser], self.world.table
        rows: list[Row] = [{**dict.fromkeys(columns), **row} for row in self.rows]
        types = {**BASE, **{column: one.type for column, one in columns.items()}}
        url, partitions = table.url, tuple(DeltaTable(table.url).metadata().partition_columns)
        files = tuple(one["url"] for one in files_of(table, None))
        listing: ListedTable | ListedState = ListedTable(table)
        if state:
            of = StateTable.open(table)
            assert run_state(of, in_process, leaf=LEAF).status == "committed"
            rows = list({row["kafka_key"]: row for row in rows}.values())
            types = {column: kind for column, kind in types.items() if column not in {"dt", "kafka_timestamp_type"}}
            url, partitions, listing = of.url, (), ListedState(table)
            files = tuple(f"{url}/{path}" for path in _paths(url))
        catalog = sql_catalog(self.root)
        made = mirror(listing, catalog, MirroredTable(listing.table, catalog, open_catalog(table.deployment, catalog)))
        assert made is not None
        listed = open_catalog(table.deployment, catalog).load_table(f"kafka.{url.rpartition('/')[2]}")
        values = {column: [row[column] for row in rows] for column in types}
        dates = [] if state else sorted({row["dt"] for row in rows})
        about = tuple(questions(types, values, dates))
        return Asked(name, url, files, types, partitions, tuple(rows), about, listed.metadata_location)


def _paths(url: str) -> Sequence[str]:
    actions = DeltaTable(url).get_add_actions(flatten=True)
    return [str(path) for path in actions.column(actions.schema.names.index("path")).to_pylist()]


def _fresh(root: Path) -> Asked:
    lake = Lake(root)
    lake.land()
    lake.land()
    return lake.asked("fresh")


def _compacted(root: Path) -> Asked:
    lake = Lake(root)
    for _ in range(3):
        lake.land()
    assert merge(lake.world).files
    return lake.asked("compacted")


def _checkpointed(root: Path) -> Asked:
    lake = Lake(root)
    lake.land()
    lake.land()
    DeltaTable(lake.world.table.url).create_checkpoint()
    lake.land()
    return lake.asked("checkpointed")


def _added(root: Path) -> Asked:
    lake = Lake(root, parser="few")
    lake.land()
    more = lake.changed("usual")
    more.land()
    return more.asked("columns added")


def _widened(root: Path) -> Asked:
    lake = Lake(root, parser="narrow")
    lake.land("n")
    wide = lake.changed("usual")
    again(wide.world, plan_rebuild(wide.world.table, None))
    wide.land()
    return wide.asked("columns widened")


def _rebuilt(root: Path) -> Asked:
    lake = Lake(root)
    lake.land()
    lake.land()
    again(lake.world, plan_rebuild(lake.world.table, [lake.rows[0]["dt"].isoformat()]))
    return lake.asked("rebuilt")


def _erased(root: Path) -> Asked:
    lake = Lake(root)
    lake.land()
    lake.land()
    gone = [1, 5, 6, 41, 70]
    erase(lake.world, gone)
    take_out(lake.world)
    lake.rows = [row for row in lake.rows if row[ROW] not in gone]
    return lake.asked("erased")


def _laid_out(root: Path) -> Asked:
    flat = [name for name, column in SETS["usual"].items() if not column.type.startswith("list")]
    bloom = [name for name in flat if SETS["usual"][name].type not in {"boolean", "float", "double"}]
    layout = f"bloom: [kafka_key, {', '.join(bloom)}], sort: [{', '.join(flat[:2])}]"
    lake = Lake(root, f"parquet: {{{layout}}}")
    lake.land()
    lake.land()
    return lake.asked("bloom, sort")


def _partitioned(root: Path) -> Asked:
    listed = ", ".join(
        f"{{column: {name}, values: [{', '.join(_listed(one) for one in column.values if one is not None)}]}}"
        if column.type != "boolean"
        else name
        for name, column in FOLDERS.items()
    )
    lake = Lake(root, f"partition_by: [dt, {listed}]", parser="folders")
    lake.land()
    return lake.asked("partitioned")


def _listed(value: Any) -> str:
    return f"'{value}'" if not isinstance(value, date) else value.isoformat()


def _cured(root: Path) -> Asked:
    """A table that was made before its properties named the columns with bounds."""
    lake = Lake(root)
    named, delta_log._bounds_property = delta_log._bounds_property, lambda columns: {}
    try:
        lake.land()
    finally:
        delta_log._bounds_property = named
    lake.land()
    return lake.asked("of before, and a commit")


def _state(root: Path) -> Asked:
    lake = Lake(root, "state: {}")
    lake.land()
    lake.land()
    return lake.asked("state", state=True)


STATES: Final[Mapping[str, Callable[[Path], Asked]]] = {
    "fresh": _fresh,
    "compacted": _compacted,
    "checkpointed": _checkpointed,
    "added": _added,
    "widened": _widened,
    "rebuilt": _rebuilt,
    "erased": _erased,
    "laid out": _laid_out,
    "partitioned": _partitioned,
    "cured": _cured,
    "state": _state,
}
"""Makers of the tables."""
