"""What no search can see: versions that a bucket keeps of deleted objects, and stores that do not tell what they keep.

Retention may have deleted records that a request names, from the table and from raw, so that no mask has them. The
pass names what may hold them. A store that does not tell is named by a note: the request stays open until a person,
who has looked, deletes that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple

from tidemark.erasure.reports import Remaining
from tidemark.erasure.requests import ErasureFolder
from tidemark.intervals import Intervals
from tidemark.planning.common import Key
from tidemark.raw_topic import RawTopic
from tidemark.store import Store, put_once
from tidemark.store.versions import versioned
from tidemark.table.delta_table import TopicTable, committed_ledger

_NOTE: Final = (
    "names stores that do not tell what they keep of deleted objects (versions, soft deletion): once nothing else of "
    "the request remains, and they keep nothing that was deleted until then, delete this note"
)


class Unseen(NamedTuple):
    """The ``offsets`` that a search found neither in a file nor in raw, and what earlier passes ``named`` for such."""

    offsets: Mapping[Key, Intervals]
    named: Collection[str]

    def may_be_in(self, partition: int, first: int, last: int) -> bool:
        """True if a file with these offsets may hold unseen records."""
        return any(key[1] == partition and offsets.clip(first, last + 1) for key, offsets in self.offsets.items())


NOTHING: Final = Unseen({}, ())


def notes(table: TopicTable, attempt: int, *, erases: bool) -> Iterator[Remaining]:
    """The notes that nobody has deleted yet; a pass that ``erases`` writes its own. Raises StoreError."""
    work = ErasureFolder.of(table.deployment, table.topic.cluster)
    folder = work.cluster.keys.untold(table.topic.topic)
    if erases and (urls := sorted({store.url for store in _stores(table) if versioned(store) is None})):
        put_once(work.cluster.store, f"{folder}{attempt}.txt", "\n".join([*urls, ""]).encode())
    yield from (Remaining(key=info.key, why=_NOTE) for info in work.cluster.store.list(folder))


def _stores(table: TopicTable) -> Iterator[Store]:
    """The stores of the lake and of each partition."""
    yield table.store
    raw = RawTopic(table)
    for state in committed_ledger(table).partitions:
        known = raw.incarnations().incarnations[state.incarnation]
        part = raw.partition(known.topic_id, known.place, state.incarnation, state.partition)
        yield raw.partition_store(part).store
