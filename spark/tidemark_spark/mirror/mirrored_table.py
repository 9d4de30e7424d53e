"""A table as a catalog lists it: what it lists, one more snapshot, and fewer old ones.

The current snapshot names the version of the Delta log that it lists, so it alone says how far the mirror is. A commit
is conditional on that snapshot being current: of two processes that list the same version, one fails. A reply may be
lost, therefore every failure leads back to reading the table again. pyiceberg would otherwise repeat a commit on top of
what somebody else has listed in the meantime, see :data:`PROPERTIES`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Final, NamedTuple

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import (
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.manifest import DataFile, ManifestFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, DecimalType, IcebergType, ListType, NestedField, StructType

from tidemark.catalogs import CatalogSettings, catalog_table
from tidemark.errors import MirrorError
from tidemark.table.delta_table import TopicTable
from tidemark_spark.convert.field_ids import DT
from tidemark_spark.mirror.delta_versions import ListedFile
from tidemark_spark.mirror.iceberg_schema import data_file, expected_schema

TABLE: Final = "tidemark.table"
VERSION: Final = "tidemark.delta-version"
ATTEMPT: Final = "tidemark.attempt"
LEDGER: Final = "tidemark.ledger"
MAPPING: Final = "schema.name-mapping.default"

PROPERTIES: Final = {
    "format-version": "2",
    # A commit that is repeated on another snapshot would list files twice.
    "commit.retry.num-retries": "0",
    # An append beside a removal of files is no conflict: the condition above is.
    "write.delete.isolation-level": "snapshot",
    "write.update.isolation-level": "snapshot",
    "write.merge.isolation-level": "snapshot",
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "16",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    # Delta's log and files that it still lists are under the same location: no engine may remove what it does not know.
    "gc.enabled": "false",
}


_ANEW: Final = "remove the table there (without its files), and the next run lists it again"


class Listed(NamedTuple):
    """Which version a snapshot lists, and by which run it came."""

    version: int
    ledger: int
    attempt: int


class MirroredTable:
    """The table of ``table``'s topic in ``catalog``. Whatever pyiceberg raises passes through."""

    def __init__(self, table: TopicTable, settings: CatalogSettings, catalog: Catalog) -> None:
        self.identifier = (*settings.namespace.split("."), catalog_table(table.topic.table))
        self._table, self._settings, self.catalog = table, settings, catalog
        self._iceberg: Table | None = None

    @property
    def name(self) -> str:
        """The table's name in the catalog, with its namespace."""
        return ".".join(self.identifier)

    @property
    def iceberg(self) -> Table:
        """The table as :meth:`load` found it."""
        if self._iceberg is None:
            raise MirrorError(f"catalog {self._settings.name}: {self.name} is not there")
        return self._iceberg

    def load(self) -> bool:
        """Read the table from the catalog; returns whether it is there.

        Raises:
            MirrorError: a table of this name is somebody else's.
        """
        try:
            self._iceberg = self.catalog.load_table(self.identifier)
        except NoSuchTableError:
            self._iceberg = None
            return False
        if self._iceberg.properties.get(TABLE) != self._table.url:
            raise MirrorError(
                f"catalog {self._settings.name}: {self.name} was not made by Tidemark for {self._table.url}; remove it "
                "there, or name another namespace"
            )
        return True

    def create(self) -> None:
        """Create the table with ``dt`` alone; the first snapshot brings the other columns, also those of partitions."""
        for depth in range(1, len(self.identifier)):
            try:
                self.catalog.create_namespace(self.identifier[:depth])
            except NamespaceAlreadyExistsError:
                continue
        folder = self._table.keys.catalog_metadata(self._settings.name)
        own = {
            TABLE: self._table.url,
            "owner": self._table.topic.owner,
            "write.metadata.path": f"{self._table.deployment.lake_store}/{folder}",
        }
        with suppress(TableAlreadyExistsError):  # another process was faster
            self.catalog.create_table(
                self.identifier,
                Schema(NestedField(1, DT.name, DateType())),
                location=self._table.url,
                partition_spec=PartitionSpec(PartitionField(1, 1000, IdentityTransform(), DT.name)),
                properties=PROPERTIES | own,
            )
        if not self.load():
            raise MirrorError(f"catalog {self._settings.name}: {self.name} was created, and is not there; try again")

    def listed(self) -> Listed | None:
        """What the current snapshot lists; None if there is none, or if it is somebody else's."""
        snapshot = self.iceberg.current_snapshot()
        summary = snapshot.summary if snapshot else None
        if summary is None or any(summary[name] is None for name in (VERSION, LEDGER, ATTEMPT)):
            return None
        return Listed(*(int(str(summary[name])) for name in (VERSION, LEDGER, ATTEMPT)))

    def files(self, dates: Iterable[str] | None = None) -> dict[str, DataFile]:
        """The files of the current snapshot, by path below the table; of ``dates`` (ISO) at least, if given."""
        snapshot = self.iceberg.current_snapshot()
        if snapshot is None:
            return {}
        files = self.iceberg.io
        wanted = None if dates is None else sorted(dates)
        manifests = (one for one in snapshot.manifests(files) if wanted is None or _may_have(one, wanted))
        found = (entry.data_file for one in manifests for entry in one.fetch_manifest_entry(files))
        return {one.file_path.removeprefix(f"{self._table.url}/"): one for one in found}

    def commit(
        self,
        listed: Listed,
        columns: pa.Schema,
        ids: Mapping[str, int],
        partitioned_by: Sequence[str],
        added: Iterable[ListedFile],
        removed: Iterable[DataFile],
    ) -> None:
        """One snapshot that lists ``listed``: with ``columns``, the files ``added``, and without those ``removed``.

        The files are ``partitioned_by`` the identity of these columns, in this order.

        Raises:
            MirrorError: the catalog's table cannot get these columns, or has other ids.
        """
        gone = list(removed)
        summary = {
            LEDGER: str(listed.ledger),
            ATTEMPT: str(listed.attempt),
            VERSION: str(listed.version),
            "tidemark.cluster": self._table.topic.cluster,
            "tidemark.topic": self._table.topic.topic,
        }
        with self.iceberg.transaction() as transaction:
            self._adopt(transaction, expected_schema(columns, ids))
            self._partition(transaction, partitioned_by)
            spec_id = transaction.table_metadata.default_spec_id
            update = transaction.update_snapshot(snapshot_properties=summary)
            with update.overwrite() if gone else update.merge_append() as snapshot:
                for file in gone:
                    snapshot.delete_data_file(file)
                for one in added:
                    snapshot.append_data_file(data_file(one, self._table.url, columns, ids, spec_id))

    def _adopt(self, transaction: Transaction, wanted: Schema) -> None:
        """Give the table the columns that are ``wanted``, in a transaction."""
        there = {one.name: one for one in transaction.table_metadata.schema().fields}
        if any(one.name not in there or there[one.name].field_type != one.field_type for one in wanted.fields):
            new: list[_New] = []
            with transaction.update_schema() as update:
                self._compare(update, (), list(there.values()), wanted.fields, new)
            while new:
                with transaction.update_schema() as update:
                    _add_some(update, new)
            # Hive's metastore refuses another type at the place of a column, so there dt stays the first one.
            if len(there) == 1 and self._settings.kind != "hive":
                names = [one.name for one in wanted.fields]
                with transaction.update_schema() as update:
                    update.move_after(DT.name, names[names.index(DT.name) - 1])
        schema = transaction.table_metadata.schema()
        if {one.name: one for one in schema.fields} != {one.name: one for one in wanted.fields}:
            raise MirrorError(
                f"catalog {self._settings.name}: the columns of {self.name} are not those of the table, or have other "
                f"ids; {_ANEW}"
            )
        mapping = schema.name_mapping.model_dump_json()
        changed = {name: value for name, value in PROPERTIES.items() if name != "format-version"} | {MAPPING: mapping}
        if changed.items() - transaction.table_metadata.properties.items():
            transaction.set_properties(changed)

    def _partition(self, transaction: Transaction, wanted: Sequence[str]) -> None:
        """Partition the table by the identity of the columns ``wanted``, in a transaction."""
        there = [one.name for one in transaction.table_metadata.spec().fields]
        if there != [*wanted[: len(there)]]:
            rule = f"is partitioned by {', '.join(there)} there, and by {', '.join(wanted)} in the lake; {_ANEW}"
            raise MirrorError(f"catalog {self._settings.name}: {self.name} {rule}")
        if len(there) < len(wanted):
            with transaction.update_spec() as update:
                for name in wanted[len(there) :]:
                    update.add_field(name, IdentityTransform(), name)

    def _compare(
        self,
        update: UpdateSchema,
        path: tuple[str, ...],
        before: Sequence[NestedField],
        after: Sequence[NestedField],
        new: list[_New],
    ) -> None:
        """Make columns wider, and collect the columns and fields that only ``after`` has."""
        there = {one.name: one.field_type for one in before}
        for one in after:
            place = (*path, one.name)
            if one.name not in there:
                new.append(_New(one.field_id, place, one.field_type))
            elif there[one.name] != one.field_type:
                self._widen(update, place, there[one.name], one.field_type, new)

    def _widen(
        self,
        update: UpdateSchema,
        path: tuple[str, ...],
        before: IcebergType,
        after: IcebergType,
        new: list[_New],
    ) -> None:
        if isinstance(before, ListType) and isinstance(after, ListType):
            if before.element_type != after.element_type:
                self._widen(update, (*path, "element"), before.element_type, after.element_type, new)
            return
        if isinstance(before, StructType) and isinstance(after, StructType):
            self._compare(update, path, before.fields, after.fields, new)
            return
        # pyiceberg 0.12.0 does not look at the scale.
        scales = {one.scale for one in (before, after) if isinstance(one, DecimalType)}
        if len(scales) > 1:
            name = f"column {'.'.join(path)} of {self.name}"
            rule = f"is {before}, which Iceberg cannot make {after}; {_ANEW}"
            raise MirrorError(f"catalog {self._settings.name}: {name} {rule}")
        update.update_column(path, after)

    def check_retries(self) -> None:
        """Make sure that pyiceberg does not repeat a commit on top of another, whatever somebody set in the catalog."""
        name = "commit.retry.num-retries"
        if self.iceberg.properties.get(name) != PROPERTIES[name]:
            with self.iceberg.transaction() as transaction:
                transaction.set_properties({name: PROPERTIES[name]})
            self.load()

    def expire(self, ids: list[int]) -> None:
        """Forget the snapshots with these ids; no file is deleted."""
        self.iceberg.maintenance.expire_snapshots().by_ids(ids).commit()
        self.load()

    def metadata_files(self) -> set[str]:
        """The file names of all metadata that the table needs.

        Names without folders: each has a UUID, and whoever else wrote a location may spell it in another way
        (``s3a://``, ``file:/``).
        """
        iceberg, metadata = self.iceberg, self.iceberg.metadata
        found = [iceberg.metadata_location, *(one.metadata_file for one in metadata.metadata_log)]
        found += [one.statistics_path for one in (*metadata.statistics, *metadata.partition_statistics)]
        for snapshot in iceberg.snapshots():
            found += [snapshot.manifest_list, *(one.manifest_path for one in snapshot.manifests(iceberg.io))]
        return {file_name(one) for one in found}


class _New(NamedTuple):
    """A column, or a field within one, that a catalog lacks."""

    field_id: int
    path: tuple[str, ...]
    kind: IcebergType

    def at_first(self, later: list[_New]) -> IcebergType:
        """The type with the fields within that have the ids right after, as a catalog gives them; others: ``later``.

        A field that a struct has got since has a greater id than columns that were there before it.
        """
        ids = count(self.field_id + 1)
        expected = next(ids)

        def kept(kind: IcebergType, path: tuple[str, ...]) -> IcebergType:
            nonlocal expected
            if isinstance(kind, ListType):
                expected = next(ids)
                element = kept(kind.element_type, (*path, "element"))
                return ListType(kind.element_id, element, element_required=False)
            if not isinstance(kind, StructType):
                return kind
            fields = []
            for one in kind.fields:
                if one.field_id == expected:
                    expected = next(ids)
                    fields.append(NestedField(one.field_id, one.name, kept(one.field_type, (*path, one.name))))
                else:
                    later.append(_New(one.field_id, (*path, one.name), one.field_type))
            return StructType(*fields)

        return kept(self.kind, self.path)


def _add_some(update: UpdateSchema, new: list[_New]) -> None:
    """Add columns and fields in the order of their ids, up to one within a column that this update adds."""
    added: set[tuple[str, ...]] = set()
    while new:
        new.sort(key=lambda one: one.field_id)
        if any(new[0].path[:length] in added for length in range(1, len(new[0].path))):
            return
        one = new.pop(0)
        added.add(one.path)
        update.add_column(one.path if len(one.path) > 1 else one.path[0], one.at_first(new))


def file_name(location: str) -> str:
    """The name of an object without its folder."""
    return location.rpartition("/")[2]


def _may_have(manifest: ManifestFile, dates: list[str]) -> bool:
    """Whether a manifest may list files of one of ``dates``, by its least and greatest."""
    by_date = next(iter(manifest.partitions or ()), None)
    if by_date is None or by_date.lower_bound is None or by_date.upper_bound is None:
        return True
    low, high = (_iso(bound) for bound in (by_date.lower_bound, by_date.upper_bound))
    return any(low <= dt <= high for dt in dates)


def _iso(bound: bytes) -> str:
    return str(pa.scalar(from_bytes(DateType(), bound), pa.date32()).as_py())
