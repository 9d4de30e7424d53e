"""Whether a catalog lists exactly the files of a table: the same paths, sizes and numbers of rows."""

from __future__ import annotations

from typing import Final

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from tidemark.catalogs import CatalogSettings
from tidemark.errors import MirrorError
from tidemark.formats.audit_report import AuditFinding
from tidemark.table.delta_table import TopicTable, live_files, open_delta
from tidemark_spark.mirror.catalog import answering
from tidemark_spark.mirror.mirrored_table import MirroredTable

_NAMED: Final = 3


def check_mirror(table: TopicTable, settings: CatalogSettings, mirrored: MirroredTable) -> list[AuditFinding]:
    """What differs between the catalog's current snapshot and the version of the Delta log that it lists.

    Nothing while the table is not listed.

    Raises:
        MirrorError: the catalog does not answer, or the log no longer has that version.
    """
    if open_delta(table) is None:
        return []
    with answering(settings):
        if not mirrored.load():
            return []
        listed = mirrored.listed()
        there = {path: (one.file_size_in_bytes, one.record_count) for path, one in mirrored.files().items()}
    where = f"{mirrored.name} in catalog {settings.name}"
    if listed is None:
        return [AuditFinding(kind="catalog_differs", detail=f"{where}: its current snapshot is not Tidemark's")]
    try:
        delta = DeltaTable(table.url, version=listed.version, storage_options=table.delta_options)
    except (DeltaError, OSError) as error:
        rule = f"lists version {listed.version}, which the Delta log no longer has; list it again with mirror.py"
        raise MirrorError(f"{where} {rule}") from error
    live = {one.path: (one.size, one.rows) for one in live_files(delta)}
    found = []
    for what, paths in (
        ("is not listed", live.keys() - there.keys()),
        ("is listed, and is not in the Delta log", there.keys() - live.keys()),
        (
            "is listed with another size or number of rows",
            {one for one in live if there.get(one, live[one]) != live[one]},
        ),
    ):
        if paths:
            files = tuple(sorted(paths))
            detail = f"{where}: version {listed.version}: {files[0]} {what}, and {len(files) - 1} more"
            found.append(AuditFinding(kind="catalog_differs", files=files[:_NAMED], detail=detail))
    return found
