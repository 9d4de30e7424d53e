"""The tables that catalogs list: the table of a topic, and its state table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from deltalake import DeltaTable
from typing_extensions import override

from tidemark.erasure.reports import last_erasure
from tidemark.errors import TableTampered
from tidemark.table.delta_table import TopicTable, ledger_of, live_files, live_paths
from tidemark.table.log_copy import LogCopy
from tidemark.table.state_table import StateTable
from tidemark.table.tampering import check_untampered


class ListedCommit(NamedTuple):
    """The commit of a run, and the ids of the table's columns; None if its files have none."""

    n: int
    attempt: int
    field_ids: Mapping[str, int] | None


class ListedTable:
    """The table of a topic. A run's ledger has the ids of its columns, and its files have them too."""

    is_state = False

    def __init__(self, table: TopicTable) -> None:
        self.table: Final = table

    def committed(self, delta: DeltaTable) -> ListedCommit | None:
        """The commit that this version has; None before the first."""
        ledger = ledger_of(self.table, delta)
        # A table of an older version gets its ids with the next commit.
        return ListedCommit(ledger.n, ledger.attempt, ledger.field_ids) if ledger.field_ids else None

    def check(self, delta: DeltaTable) -> None:
        """Raise TableTampered if another program has changed the files of this version."""
        check_untampered(self.table, ledger_of(self.table, delta), live_files(delta))

    def erased_in(self) -> int:
        """The number of the ledger from which on no snapshot may list erased rows for longer than their grace."""
        return last_erasure(self.table)


class ListedState(ListedTable):
    """The state table of a topic; :attr:`table` has its name and place.

    Its files have no ids, and readers find their columns by name. So each catalog numbers the columns by itself.
    """

    is_state = True

    def __init__(self, table: TopicTable) -> None:
        """List the state of the topic of ``table``."""
        topic = table.topic.model_copy(update={"table": table.topic.state_table})
        super().__init__(table._replace(topic=topic, keys=table.deployment.state_keys(table.topic), log=LogCopy()))
        self._state = StateTable.open(table)

    @override
    def committed(self, delta: DeltaTable) -> ListedCommit | None:
        ledger = self._state.ledger(delta)
        return ListedCommit(ledger.n, ledger.attempt, None) if ledger else None

    @override
    def check(self, delta: DeltaTable) -> None:
        ledger = self._state.ledger(delta)
        if live_paths(delta) != {leaf.path for leaf in (ledger.leaves if ledger else ()) if leaf.path}:
            rule = "has other files than its ledger says: something else changed it"
            raise TableTampered(f"{self.table.url} {rule}; make it again by state.py --rebuild")

    @override
    def erased_in(self) -> int:
        return 0  # its snapshots are not kept for longer
