"""One topic's state table: its location, its Delta log, and its committed ledger."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from tidemark.errors import ConfigError
from tidemark.formats.table.ledger import ATTEMPT_TRANSACTION, LEDGER_TRANSACTION
from tidemark.formats.table.state_ledger import Leaf, StateLedger
from tidemark.formats.table.statuses import StateStatus
from tidemark.store import Store
from tidemark.table.delta_table import TopicTable
from tidemark.table.log_copy import LogCopy
from tidemark.topics import StateSettings

if TYPE_CHECKING:
    from deltalake import DeltaTable


class StateTable(NamedTuple):
    """The state table ``of`` a topic's table; ``log`` is read whenever the table is opened."""

    of: TopicTable
    log: LogCopy

    @classmethod
    def open(cls, table: TopicTable) -> StateTable:
        """The state table of the topic of ``table``. Raises ConfigError if the topic has none."""
        if table.topic.state is None:
            rule = "has no state table; give the topic `state:` in the topics file"
            raise ConfigError(f"topic {table.topic.cluster}/{table.topic.topic}", [("state", rule)])
        return cls(table, LogCopy())

    @property
    def store(self) -> Store:
        """The lake's store."""
        return self.of.store

    @property
    def settings(self) -> StateSettings:
        """The topic's ``state``."""
        assert self.of.topic.state is not None
        return self.of.topic.state

    @property
    def root(self) -> str:
        """The key of the state table's folder; no trailing slash."""
        return self.of.deployment.state_keys(self.of.topic).root

    @property
    def url(self) -> str:
        """The state table's URL, for any engine."""
        return f"{self.of.deployment.lake_store}/{self.root}"

    def files(self, ledger: StateLedger) -> dict[str, int]:
        """The keys and sizes of the files of ``ledger``: its leaves, and their reserves."""
        leaves = {f"{self.root}/{leaf.path}": leaf.size for leaf in ledger.leaves if leaf.path}
        return leaves | {leaf.reserve: leaf.reserve_size for leaf in ledger.leaves if leaf.reserve}

    def delta(self) -> DeltaTable | None:
        """The table at its newest version, or None before its first commit.

        Raises:
            ConfigError: the Delta table there is not Tidemark's.
            StoreError: the store failed.
        """
        delta = self.log.look(self.store, self.root)
        ours = delta is None or delta.transaction_version(LEDGER_TRANSACTION) is not None
        if delta is not None and not ours and delta.get_add_actions().num_rows:
            rule = f"{self.url} has a Delta table that Tidemark did not make; name another table in state.table"
            raise ConfigError(f"topic {self.of.topic.cluster}/{self.of.topic.topic}", [("state", rule)])
        return delta

    def ledger(self, delta: DeltaTable | None) -> StateLedger | None:
        """The ledger that this version of the table names; None if nothing was committed."""
        n = delta.transaction_version(LEDGER_TRANSACTION) if delta is not None else None
        attempt = delta.transaction_version(ATTEMPT_TRANSACTION) if delta is not None else None
        if n is None or attempt is None:
            return None
        return self.named_ledger(n, attempt)

    def named_ledger(self, n: int, attempt: int) -> StateLedger:
        """A ledger, committed or not; its reserves lie where the lake is now, although it may have moved since.

        Raises:
            NotFound: there is no such ledger.
        """
        ledger = StateLedger.load(self.store, self.of.keys.state_ledger(n, attempt))
        return ledger.model_copy(update={"leaves": tuple(map(self._present, ledger.leaves))})

    def _present(self, leaf: Leaf) -> Leaf:
        name = leaf.reserve.rpartition("/")[2]
        return leaf.model_copy(update={"reserve": f"{self.of.keys.state_reserve}{name}"}) if name else leaf

    def committed(self) -> StateLedger | None:
        """The ledger of the newest version; None if nothing was committed."""
        return self.ledger(self.delta())


def former_states(table: TopicTable) -> list[str]:
    """The folders of tables that were the topic's state table under another setting, unless a topic has such a table.

    Raises FormatError and StoreError.
    """
    status = StateStatus.load_or_none(table.store, table.keys.deployment.state_status(table.topic.topic))
    names = (*status.former, status.table) if status is not None else ()
    present = {name for topic in table.deployment.topics for name in topic.tables}
    return [replace(table.keys, table=name).root for name in names if name not in present]


def state_status(table: TopicTable) -> StateStatus | None:
    """The status that the last run or audit of the topic's state table left; None without a state, or before the first.

    Raises FormatError and StoreError.
    """
    if table.topic.state is None:
        return None
    return StateStatus.load_or_none(table.store, table.keys.deployment.state_status(table.topic.topic))
