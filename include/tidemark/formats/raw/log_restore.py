"""A restore: the statement of a person who went on with the log of a restored broker, in place of the stored history.

``_restores/<cluster>/<topic>-<partition>/<number>.json`` is evidence for people. ``restores`` of ``offset.wm`` decides.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import AwareDatetime, Field

from tidemark.formats import object_sizes
from tidemark.formats.base import StoredObject
from tidemark.formats.raw.manifest import LineagePairs
from tidemark.formats.raw.watermark import Watermark


class LogRestore(StoredObject):
    """The ``number``-th restore of a partition, counted from 1: from the offset ``start`` on, its log is another one.

    ``stored_end`` is the end of what had been stored, in segments and packs, and ``log_end`` the end of the log with
    the ``lineage`` of ``broker``'s disk. ``replaced`` is the ``offset.wm`` before, in its version ``etag``. ``by`` is
    the name that the writer gives, ``written_as`` the identity under which the object was written.
    """

    most_bytes: ClassVar[int] = object_sizes.RESTORE

    cluster: str
    place: str
    partition: int = Field(ge=0)
    number: int = Field(ge=1)
    start: int = Field(alias="from", ge=0)
    stored_end: int = Field(ge=0)
    log_end: int = Field(ge=0)
    lineage: LineagePairs
    leader_epoch: int
    broker: int
    replaced: Watermark
    etag: str
    difference: str
    by: str = Field(min_length=1)
    written_as: str = Field(min_length=1)
    at: AwareDatetime
    reason: str = Field(min_length=1)
