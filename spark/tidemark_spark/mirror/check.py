"""Checks that a catalog lists exactly the files of a table: equal paths, sizes and numbers of rows."""

from __future__ import annotations

from typing import Final

from deltalake.exceptions import DeltaError

from tidemark.catalogs import CatalogSettings
from tidemark.errors import MirrorError
from tidemark.formats.table.audit_report import AuditFinding
from tidemark.table.delta_table import TopicTable, live_files, open_delta
from tidemark_spark.mirror.catalog import answering
from tidemark_spark.mirror.mirrored_table import MirroredTable

_NAMED: Final = 3


def check_mirror(table: TopicTable, settings: CatalogSettings, mirrored: MirroredTable) -> list[AuditFinding]:
    """Differences between the catalog's current snapshot and the version of the Delta log that it lists.

    Empty while the table is not listed.

    Raises:
        MirrorError: the catalog does not answer, or the log no longer has that version.
    """
    if open_delta(table) is None:
        return []
    with answering(settings):
        if not mirrored.load():
            return []
        listed = mirrored.listed()
        in_catalog = {path: (file.file_size_in_bytes, file.record_count) for path, file in mirrored.files().items()}
    where = f"{mirrored.name} in catalog {settings.name}"
    if listed is None:
        return [AuditFinding(kind="catalog_differs", detail=f"{where}: its current snapshot is not Tidemark's")]
    try:
        delta = table.by_delta_rs(listed.version)
    except (DeltaError, OSError) as error:
        rule = f"lists version {listed.version}, which the Delta log no longer has; list it again with mirror.py"
        raise MirrorError(f"{where} {rule}") from error
    live = {file.path: (file.size, file.rows) for file in live_files(delta)}
    findings = []
    for difference, paths in (
        ("is not listed", live.keys() - in_catalog.keys()),
        ("is listed, and is not in the Delta log", in_catalog.keys() - live.keys()),
        (
            "is listed with another size or number of rows",
            {path for path in live if in_catalog.get(path, live[path]) != live[path]},
        ),
    ):
        if paths:
            files = tuple(sorted(paths))
            detail = f"{where}: version {listed.version}: {files[0]} {difference}, and {len(files) - 1} more"
            findings.append(AuditFinding(kind="catalog_differs", files=files[:_NAMED], detail=detail))
    return findings
