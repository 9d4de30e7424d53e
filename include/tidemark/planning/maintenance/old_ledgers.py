"""The ledgers of a table that nothing can name any more. Pure.

Each commit writes a ledger, and the next ledger names it as its parent. A ledger stays while one of these may read it:

* the table: it is the committed ledger, or the parent of that, which the watch compares it with;
* a reader of an older version of the table, as far as Delta's log still has it: time travel, RESTORE;
* the outbox: asset events are made of all ledgers down to the one that ``published.json`` names, inclusive;
* the state table: its next run reads all ledgers down to the one that it equals, inclusive;
* a process that opened the table while the ledger was the committed one or its parent, or that is still to commit it.
  No run lasts longer than :data:`~tidemark.planning.maintenance.vacuum.RUN_OVER`.

All five only ever move on. So a ledger that is not needed now will never be needed, and neither the order of deletions
nor a kill of the vacuum nor a commit meanwhile matters. An attempt that lost its result, and that is run again after
its ledger is deleted, reports less of its work (``RunResult``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Final, NamedTuple

from tidemark.planning.maintenance.vacuum import RUN_OVER
from tidemark.store.base import ObjectInfo

_NAME: Final = re.compile(r"(0|[1-9][0-9]*)-(0|[1-9][0-9]*)\.json", re.ASCII)

_BEHIND: Final = 3
"""The ledger before the oldest young one was committed before that was written, and its parent is one more.

Another is for a run that wrote its ledger and committed it only at a later try.
"""


class NamedLedgers(NamedTuple):
    """The numbers of ledgers that something names.

    ``committed`` is the table's own, ``in_log`` that of the oldest version in Delta's log, and ``published`` that of
    the outbox. Each is 0 if there is none yet. ``state`` is the commit that the state table equals, if there is one.
    """

    committed: int
    in_log: int
    published: int
    state: int | None = None


def old_ledgers(listed: Iterable[ObjectInfo], named: NamedLedgers, now: datetime) -> list[ObjectInfo]:
    """The ``listed`` objects of the ledger's folder that may be deleted at the time ``now`` of the store.

    A ledger that lost the race for its number is deleted with the winner.
    """
    numbers = {info: int(match[1]) for info in listed if (match := _NAME.fullmatch(info.key.rpartition("/")[2]))}
    young = [n for info, n in numbers.items() if now - info.modified <= RUN_OVER]
    oldest_young = min(young, default=named.committed + 1)
    first = min(named.committed - 1, named.in_log - 1, named.published, oldest_young - _BEHIND)
    if named.state is not None:
        first = min(first, named.state)
    return [info for info, n in numbers.items() if n < first]
