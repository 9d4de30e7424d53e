"""A table in a catalog: its listed files, a commit of a snapshot, and the expiry of old snapshots.

The current snapshot names the version of the Delta log that it lists, so it alone shows how far the mirror is. A commit
is conditional on that snapshot being current: of two processes that list the same version, one fails. A reply may be
lost, therefore the table is read again after every failure. pyiceberg would otherwise repeat a commit on top of another
process's commit, see :data:`PROPERTIES`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import date
from itertools import count
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.exceptions import (
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema, index_by_name
from pyiceberg.table import Table, Transaction
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from tidemark.catalogs import CatalogSettings, catalog_table
from tidemark.errors import MirrorError
from tidemark.formats.table.partitioning import partition_values
from tidemark.parsers.partition_columns import typed
from tidemark.table.delta_table import TopicTable
from tidemark.table.topic_columns import DT
from tidemark_spark.convert.field_ids import with_columns
from tidemark_spark.mirror.delta_versions import ListedFile
from tidemark_spark.mirror.store_io import NOT_OURS

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
    # Delta's log and its files are under the same location: no engine may remove files that it does not know.
    "gc.enabled": "false",
}


_ANEW: Final = "remove the table there (without its files), and the next run lists it again"


class ListedVersion(NamedTuple):
    """The version that a snapshot lists, and the run that made it."""

    version: int
    ledger: int
    attempt: int


class MirroredTable:
    """The table of ``table``'s topic in ``catalog``. Errors of pyiceberg are passed on."""

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
        """The table found by :meth:`load`."""
        if self._iceberg is None:
            raise MirrorError(f"catalog {self._settings.name}: {self.name} does not exist")
        return self._iceberg

    def load(self) -> bool:
        """Read the table from the catalog; True if it exists.

        Raises:
            MirrorError: another program made a table of this name.
        """
        try:
            self._iceberg = self.catalog.load_table(self.identifier)
        except NoSuchTableError:
            self._iceberg = None
            return False
        if self._iceberg.properties.get(TABLE) != self._table.url:
            raise MirrorError(
                f"catalog {self._settings.name}: {self.name} was not made by Tidemark for {self._table.url}; {NOT_OURS}"
            )
        return True

    def ids(self) -> dict[str, int]:
        """The ids of the columns and their fields, by path."""
        return dict(index_by_name(self.iceberg.schema()))

    def create(self, first: pa.Field[Any], *, partitioned: bool) -> None:
        """Create the table with its ``first`` column alone, and if ``partitioned``, partitioned by it.

        The first snapshot adds the other columns and partitions.
        """
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
        by_first = PartitionField(1, 1000, IdentityTransform(), first.name)
        with suppress(TableAlreadyExistsError):  # another process was faster
            self.catalog.create_table(
                self.identifier,
                expected_schema(pa.schema([first]), with_columns({}, [first])),
                location=self._table.url,
                partition_spec=PartitionSpec(*([by_first] if partitioned else [])),
                properties=PROPERTIES | own,
            )
        if not self.load():
            raise MirrorError(f"catalog {self._settings.name}: {self.name} was created, and is not there; try again")

    def listed(self) -> ListedVersion | None:
        """The version listed by the current snapshot; None without a snapshot, or if another program made it."""
        snapshot = self.iceberg.current_snapshot()
        return _listed(snapshot) if snapshot else None

    @staticmethod
    def ledger(snapshot: Snapshot) -> int:
        """The number of the ledger that ``snapshot`` lists; 0 if another program made it."""
        listed = _listed(snapshot)
        return listed.ledger if listed else 0

    def refs(self) -> dict[str, int]:
        """The numbers of the ledgers that other tags and branches list, by ``tag`` or ``branch`` and name."""
        by_id = {snapshot.snapshot_id: self.ledger(snapshot) for snapshot in self.iceberg.snapshots()}
        refs = self.iceberg.metadata.refs.items()
        named = ((f"{ref.snapshot_ref_type.value} {name}", ref) for name, ref in refs if name != MAIN_BRANCH)
        return {name: by_id.get(ref.snapshot_id, 0) for name, ref in named}

    def files(self, dates: Iterable[str] | None = None) -> dict[str, DataFile]:
        """Files of the current snapshot, by path below the table; at least the files of ``dates`` (ISO), if given."""
        snapshot = self.iceberg.current_snapshot()
        if snapshot is None:
            return {}
        files = self.iceberg.io
        wanted = None if dates is None else sorted(dates)
        manifests = [each for each in snapshot.manifests(files) if wanted is None or _may_have(each, wanted)]
        listed = (entry.data_file for manifest in manifests for entry in manifest.fetch_manifest_entry(files))
        return {file.file_path.removeprefix(f"{self._table.url}/"): file for file in listed}

    def commit(
        self,
        listed: ListedVersion,
        columns: pa.Schema,
        ids: Mapping[str, int],
        partitioned_by: Sequence[str],
        added: Iterable[ListedFile],
        removed: Iterable[DataFile],
    ) -> None:
        """Commit a snapshot that lists ``listed``: with ``columns``, with the files ``added``, and without ``removed``.

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
                for new in added:
                    snapshot.append_data_file(data_file(new, self._table.url, columns, ids, spec_id))

    def _adopt(self, transaction: Transaction, wanted: Schema) -> None:
        """Give the table the ``wanted`` columns, in a transaction."""
        existing = {field.name: field for field in transaction.table_metadata.schema().fields}
        if any(
            field.name not in existing or existing[field.name].field_type != field.field_type for field in wanted.fields
        ):
            new: list[_New] = []
            with transaction.update_schema() as update:
                self._compare(update, (), list(existing.values()), wanted.fields, new)
            while new:
                with transaction.update_schema() as update:
                    _add_some(update, new)
            # Hive's metastore refuses another type at the place of a column, so there dt stays the first one.
            if [*existing] == [DT.name] and self._settings.kind != "hive":
                names = [field.name for field in wanted.fields]
                with transaction.update_schema() as update:
                    update.move_after(DT.name, names[names.index(DT.name) - 1])
        schema = transaction.table_metadata.schema()
        if {field.name: field for field in schema.fields} != {field.name: field for field in wanted.fields}:
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
        existing = [field.name for field in transaction.table_metadata.spec().fields]
        if existing != [*wanted[: len(existing)]]:
            rule = f"is partitioned by {', '.join(existing)} there, and by {', '.join(wanted)} in the lake; {_ANEW}"
            raise MirrorError(f"catalog {self._settings.name}: {self.name} {rule}")
        if len(existing) < len(wanted):
            with transaction.update_spec() as update:
                for name in wanted[len(existing) :]:
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
        existing = {field.name: field.field_type for field in before}
        for field in after:
            place = (*path, field.name)
            if field.name not in existing:
                new.append(_New(field.field_id, place, field.field_type))
            elif existing[field.name] != field.field_type:
                self._widen(update, place, existing[field.name], field.field_type, new)

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
        # pyiceberg 0.12.0 does not compare the scale.
        scales = {kind.scale for kind in (before, after) if isinstance(kind, DecimalType)}
        if len(scales) > 1:
            name = f"column {'.'.join(path)} of {self.name}"
            rule = f"is {before}, which Iceberg cannot make {after}; {_ANEW}"
            raise MirrorError(f"catalog {self._settings.name}: {name} {rule}")
        update.update_column(path, after)

    def check_retries(self) -> None:
        """Ensure that pyiceberg never repeats a commit on top of another, whatever the catalog's properties say."""
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
        """File names of all metadata that the table needs.

        They are names without folders: each has a UUID, and another writer may have spelled a location in another way
        (``s3a://``, ``file:/``).
        """
        iceberg, metadata = self.iceberg, self.iceberg.metadata
        locations = [iceberg.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)]
        locations += [file.statistics_path for file in (*metadata.statistics, *metadata.partition_statistics)]
        for snapshot in iceberg.snapshots():
            manifests = snapshot.manifests(iceberg.io)
            locations += [snapshot.manifest_list, *(manifest.manifest_path for manifest in manifests)]
        return {file_name(location) for location in locations}


class _New(NamedTuple):
    """A column, or a field within one, that a catalog lacks."""

    field_id: int
    path: tuple[str, ...]
    kind: IcebergType

    def at_first(self, later: list[_New]) -> IcebergType:
        """The type with the nested fields that a catalog numbers right after it; other fields are put into ``later``.

        A field added to a struct later has a greater id than columns that existed before it.
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
            for child in kind.fields:
                if child.field_id == expected:
                    expected = next(ids)
                    fields.append(NestedField(child.field_id, child.name, kept(child.field_type, (*path, child.name))))
                else:
                    later.append(_New(child.field_id, (*path, child.name), child.field_type))
            return StructType(*fields)

        return kept(self.kind, self.path)


def _add_some(update: UpdateSchema, new: list[_New]) -> None:
    """Add columns and fields in the order of their ids, up to a field within a column that this update adds."""
    added: set[tuple[str, ...]] = set()
    while new:
        new.sort(key=lambda missing: missing.field_id)
        if any(new[0].path[:length] in added for length in range(1, len(new[0].path))):
            return
        missing = new.pop(0)
        added.add(missing.path)
        update.add_column(missing.path, missing.at_first(new))  # a text would be a path, too


def _listed(snapshot: Snapshot) -> ListedVersion | None:
    """The version that ``snapshot`` lists; None if another program made it."""
    summary = snapshot.summary
    if summary is None or any(summary[name] is None for name in (VERSION, LEDGER, ATTEMPT)):
        return None
    return ListedVersion(*(int(str(summary[name])) for name in (VERSION, LEDGER, ATTEMPT)))


def file_name(location: str) -> str:
    """The name of an object without its folder."""
    return location.rpartition("/")[2]


def _may_have(manifest: ManifestFile, dates: list[str]) -> bool:
    """True if a manifest may list files of one of ``dates``, according to its least and greatest date."""
    by_date = next(iter(manifest.partitions or ()), None)
    if by_date is None or by_date.lower_bound is None or by_date.upper_bound is None:
        return True
    low, high = (_iso(bound) for bound in (by_date.lower_bound, by_date.upper_bound))
    return any(low <= dt <= high for dt in dates)


def _iso(bound: bytes) -> str:
    return str(pa.scalar(from_bytes(DateType(), bound), pa.date32()).as_py())


_EPOCH: Final = date(1970, 1, 1)
_SIMPLE: Final[dict[pa.DataType, IcebergType]] = {
    pa.bool_(): BooleanType(),
    pa.int8(): IntegerType(),
    pa.int16(): IntegerType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.float32(): FloatType(),
    pa.float64(): DoubleType(),
    pa.string(): StringType(),
    pa.binary(): BinaryType(),
    pa.date32(): DateType(),
    pa.timestamp("us", "UTC"): TimestamptzType(),
}


def iceberg_type(kind: pa.DataType, path: str, ids: Mapping[str, int]) -> IcebergType:
    """The type of the column at ``path``, with the ids of its nested fields.

    Raises:
        MirrorError: Iceberg has no such type.
    """
    if isinstance(kind, pa.ListType):
        inner = f"{path}.element"
        element = iceberg_type(kind.value_type, inner, ids)
        return ListType(ids[inner], element, element_required=False)
    if isinstance(kind, pa.StructType):
        inner_fields = (
            NestedField(ids[f"{path}.{field.name}"], field.name, iceberg_type(field.type, f"{path}.{field.name}", ids))
            for field in kind
        )
        return StructType(*inner_fields)
    if isinstance(kind, pa.Decimal128Type):
        return DecimalType(kind.precision, kind.scale)
    simple = _SIMPLE.get(kind)
    if simple is None:
        raise MirrorError(f"column {path}: Iceberg has no type for {kind}, so no catalog can list the table")
    return simple


def expected_schema(columns: pa.Schema, ids: Mapping[str, int]) -> Schema:
    """The schema that a catalog must have for a table with these ``columns``."""
    fields = (NestedField(ids[field.name], field.name, iceberg_type(field.type, field.name, ids)) for field in columns)
    return Schema(*fields)


def data_file(file: ListedFile, root: str, columns: pa.Schema, ids: Mapping[str, int], spec_id: int) -> DataFile:
    """A file of the table at ``root`` (a URL), partitioned by the identity of the columns of its folder."""
    folder = partition_values(file.path)
    kinds: dict[str, Any] = {"kafka_partition": IntegerType(), "kafka_offset": LongType()}
    limits = [(ids[name], kinds.get(name, TimestamptzType()), low, high) for name, low, high in file.bounds]
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{root}/{file.path}",
        file_format=FileFormat.PARQUET,
        partition=Record(*(_partition_value(text, columns.field(name).type) for name, text in folder.items())),
        record_count=file.rows,
        file_size_in_bytes=file.size,
        value_counts={number: file.rows for number, *_ in limits},
        null_value_counts={number: 0 for number, *_ in limits},
        lower_bounds={number: to_bytes(kind, low) for number, kind, low, _ in limits},
        upper_bounds={number: to_bytes(kind, high) for number, kind, _, high in limits},
        spec_id=spec_id,
    )


def _partition_value(text: str | None, kind: pa.DataType) -> str | int | None:
    value = None if text is None else typed(text, kind)
    return (value - _EPOCH).days if isinstance(value, date) else value
