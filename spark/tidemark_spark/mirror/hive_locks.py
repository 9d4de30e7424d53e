"""Hive's catalog, which soon removes the lock of a process that was killed.

pyiceberg holds a lock of the metastore's while it commits. If the process is killed then, the metastore gives the lock
up after its ``hive.txn.timeout``, five minutes by default. Here each lock names the process that holds it. A process
that has waited for a lock as long as pyiceberg does, 14 seconds by default, removes it if its holder ran on this
machine and has ended. By then, a request that the holder sent before it was killed has ended, too.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from hive_metastore.ttypes import LockRequest, LockResponse, ShowLocksRequest, UnlockRequest
from pyiceberg.catalog.hive import HiveCatalog
from pyiceberg.exceptions import WaitingForLockException
from typing_extensions import override

if TYPE_CHECKING:
    from hive_metastore.ThriftHiveMetastore import Client

_PROC: Final = Path("/proc")
_HOLDER: Final = re.compile(r"tidemark (\S+) (\d{1,9}) (\d{1,18})", re.ASCII)
_STARTED: Final = 19
"""The place of the time of start, in ticks since boot, among the fields of ``stat`` after the process's name."""


class LockHolder(NamedTuple):
    """A process: where its id is valid, the id, and when it started. ``str`` of it is what its locks say."""

    machine: str
    pid: int
    started: int

    def __str__(self) -> str:
        return f"tidemark {self.machine} {self.pid} {self.started}"

    @classmethod
    def of_process(cls, pid: int) -> LockHolder:
        """The running process of this id. Raises OSError if there is none."""
        return cls(_machine(), pid, _started(pid))

    @classmethod
    def said(cls, text: str | None) -> LockHolder | None:
        """What a lock says; None if another program holds it."""
        found = _HOLDER.fullmatch(text or "")
        return cls(found[1], int(found[2]), int(found[3])) if found else None

    def is_gone(self) -> bool:
        """Whether it is known to have ended. Nothing is known of another machine's, or of one that is hidden here."""
        if self.machine != _machine():
            return False
        try:
            os.kill(self.pid, 0)
            return _started(self.pid) != self.started
        except ProcessLookupError:
            return True
        except OSError:
            return False


def _machine() -> str:
    """This boot of this machine, and the namespace of this process's id."""
    boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{(_PROC / 'self/ns/pid').stat().st_ino}"


def _started(pid: int) -> int:
    return int((_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[_STARTED])


class HiveCatalogWithHolders(HiveCatalog):
    """Hive's metastore, with locks that name their holders."""

    @override
    def _create_lock_request(self, database_name: str, table_name: str) -> LockRequest:
        request = super()._create_lock_request(database_name, table_name)
        request.agentInfo = str(LockHolder.of_process(os.getpid()))
        return request

    @override
    def _wait_for_lock(self, database_name: str, table_name: str, lockid: int, open_client: Client) -> LockResponse:
        try:
            return super()._wait_for_lock(database_name, table_name, lockid, open_client)
        except WaitingForLockException:
            if not _removed(open_client, database_name, table_name):
                raise
            return super()._wait_for_lock(database_name, table_name, lockid, open_client)


def _removed(metastore: Client, database: str, table: str) -> int:
    """Remove the table's locks whose holders are gone; how many there were."""
    found = metastore.show_locks(ShowLocksRequest(dbname=database, tablename=table)).locks
    holders = ((one.lockid, LockHolder.said(one.agentInfo)) for one in found)
    gone = [lock for lock, holder in holders if holder is not None and holder.is_gone()]
    for lock in gone:
        metastore.unlock(UnlockRequest(lockid=lock))
    return len(gone)
