"""The progress of the catalogs that list the tables of a cluster, for readers without the job's log."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from pydantic import AwareDatetime, Field

from tidemark.formats import object_sizes
from tidemark.formats.base import Model, StoredObject


class MirrorKey(NamedTuple):
    """A topic's table, or its ``state`` table, in a catalog."""

    topic: str
    catalog: str
    state: bool = False


class MirrorState(Model):
    """One table in one catalog: ``identifier`` is its name there. ``state`` is true of a topic's state table.

    ``ledger_n`` and ``delta_version`` are the newest that the catalog lists, as ``snapshot_id``, since ``at``; None
    while nothing is listed. ``oldest_ledger`` is the oldest that a snapshot there lists, 0 if another program made one,
    and None in an older state; ``refs`` has that of each tag and of other branches. ``failing_since`` and ``error``
    describe a failure that lasts.
    """

    topic: str
    catalog: str
    identifier: str
    state: bool = False
    ledger_n: int = Field(default=0, ge=0)
    delta_version: int | None = None
    snapshot_id: int | None = None
    oldest_ledger: int | None = None
    refs: dict[str, int] = Field(default_factory=dict)
    at: AwareDatetime | None = None
    failing_since: AwareDatetime | None = None
    error: str = ""

    @property
    def key(self) -> MirrorKey:
        """The identity of the table and its catalog."""
        return MirrorKey(self.topic, self.catalog, self.state)


class MirrorStatus(StoredObject):
    """``_tidemark/_mirrors/<cluster>.json``: the last run of the cluster's mirror job, and each table's state."""

    most_bytes: ClassVar[int] = object_sizes.DEPLOYMENT

    cluster: str
    at: AwareDatetime
    tables: tuple[MirrorState, ...] = ()

    @property
    def by_key(self) -> dict[MirrorKey, MirrorState]:
        """The states of all tables."""
        return {table.key: table for table in self.tables}
