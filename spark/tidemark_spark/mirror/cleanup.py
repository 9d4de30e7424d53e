"""Deletes the metadata of a catalog's table that no snapshot needs any more.

pyiceberg's expiry forgets snapshots and deletes nothing, and a failed commit leaves its objects. An object is deleted
if the table's current metadata does not name it and it is two days old: until then, a reader of an older version or a
commit whose reply was lost may need it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from tidemark.concurrency import in_parallel
from tidemark.errors import NotFound, PreconditionFailed
from tidemark.store.base import ObjectInfo
from tidemark.table.delta_table import TopicTable
from tidemark_spark.mirror.mirrored_table import MirroredTable, file_name

UNUSED: Final = timedelta(days=2)


def remove_unused(table: TopicTable, catalog: str, mirrored: MirroredTable) -> int:
    """Remove the objects in ``catalog`` that ``mirrored``, as loaded, does not need; returns their number.

    Raises:
        StoreError: the store did not answer; the next call removes the rest.
    """
    folder = f"{table.keys.catalog_metadata(catalog)}/"
    now = table.store.now()
    past = [info for info in table.store.list(folder) if now - info.modified > UNUSED]
    if not past:
        return 0
    needed = mirrored.metadata_files()
    unused = [info for info in past if file_name(info.key) not in needed]
    return sum(in_parallel(lambda info: _delete(table, info), unused))


def _delete(table: TopicTable, info: ObjectInfo) -> bool:
    try:
        table.store.delete(info.key, if_match=info.etag)
    except (NotFound, PreconditionFailed):
        return False
    return True
