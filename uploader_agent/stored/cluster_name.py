"""The right to write under a cluster's name, which one Kafka cluster owns, as an object in the store says.

Agents of two clusters under one name would replace each other's indexes and heads, and end each other's topics. So
nothing is written before this process knows that its cluster owns the name. The first agent creates the object; a
cluster that was made again under the old name has another id, and gets the name from a person.

:class:`GuardedStore` asks before each write. The cluster's own id is looked at then as well: the broker beside this
process may have been made again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final

import structlog
from typing_extensions import override

from tidemark.errors import ConfigError, FormatError, NotFound, PreconditionFailed, Refused, StoreError, TidemarkError
from tidemark.formats.base import Version
from tidemark.formats.raw.cluster import ClusterOwner, of_broker
from tidemark.formats.raw.watermark_index import parse_index
from tidemark.formats.table.object_cache import ObjectCache
from tidemark.storage import ClusterStore
from tidemark.store import Store
from tidemark.store.retrying import RepeatingStore, Retry
from uploader_agent.broker.properties import META, Identity, read_identity
from uploader_agent.runtime import utc_now
from uploader_agent.stored.other_origin import SILENCE

logger = structlog.get_logger(__name__)

_READ_AGAIN: Final = 600.0
"""Seconds for which the owner is known: the name may be handed over while an agent of the former owner is frozen."""


class ClusterReplaced(TidemarkError):
    """The broker or cluster is another one than at the start of this process."""

    def __init__(self, now: str, before: str) -> None:
        then = "nothing more is written; start the agent again, to work for the new one"
        super().__init__(f"the agent worked for {before}, and now finds {now}: {then}")


class ClusterName:
    """The name of ``cluster``, for the cluster with the id that ``own_id`` returns at any time. Thread-safe."""

    def __init__(
        self,
        cluster: ClusterStore,
        own_id: Callable[[], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``own_id`` may raise a TidemarkError while the id is unknown. Nothing is asked yet."""
        self._cluster, self._own_id, self._clock = cluster, own_id, clock
        self._owner: str | None = None
        self._read_again_at = 0.0
        self._wrong: TidemarkError | None = None
        self.on_wrong: Callable[[], object] = lambda: None
        """Called once the process can never write again."""

    def check(self) -> None:
        """Return if this process may write.

        Raises:
            ConfigError: another cluster owns the name.
            ClusterReplaced: the cluster's id is another one than at the first call.
            TidemarkError: that is not known now; try again later.
        """
        self.raise_wrong()
        try:
            self._owner = self._checked()
        except (ConfigError, ClusterReplaced) as error:
            self._wrong = error
            logger.error("writes_refused", error=str(error))  # noqa: TRY400 - the message has all
            self.on_wrong()
            raise

    def refusal(self) -> ConfigError | None:
        """The error that :meth:`check` would raise as the store is now. Nothing is written. Raises its other errors."""
        own, known = self._own_id(), self._read()
        return self._taken(own, own if known is None else known.value.cluster_id)

    def raise_wrong(self) -> None:
        """Raise the error for which this process can never write again, if there is one."""
        if self._wrong is not None:
            raise self._wrong

    def hand_over(self, former: str) -> ClusterOwner:
        """Have the own cluster own the name from now on, in place of the cluster with the id ``former``.

        Raises:
            ConfigError: another cluster than ``former`` owns the name.
            TidemarkError: agents of the name have written an index within the last minutes.
            PreconditionFailed: somebody else has handed it over meanwhile.
            StoreError, FormatError: the store failed, or an object is damaged.
        """
        own, known = self._own_id(), self._read()
        if known is not None and known.value.cluster_id == own:
            return known.value
        if known is None or known.value.cluster_id != former:
            owner = known.value.cluster_id if known else "no cluster"
            raise ConfigError("the command line", [("FORMER", f"{former} does not own the name, but {owner}")])
        indexes = ObjectCache(self._cluster.store, self._cluster.keys.indexes, parse_index)
        indexes.look()
        for error in indexes.failures.values():
            raise error
        running = sorted(of_broker(one.broker) for one in indexes.kept.values() if one.written_at > utc_now() - SILENCE)
        if running:
            rule = f"the agents of {', '.join(running)} have written under the name {self._cluster.keys.cluster}"
            minutes = f"within the last {SILENCE.seconds // 60} minutes"
            raise TidemarkError(f"{rule} {minutes}: stop those of the cluster {former} for good, and wait")
        new = ClusterOwner(cluster_id=own, former=(*known.value.former, former))
        self._cluster.store.put(self._key, new.to_bytes(), if_match=known.etag)
        return new

    @property
    def _key(self) -> str:
        return self._cluster.keys.cluster_owner

    def _checked(self) -> str:
        """The own id, which may write. Raises the errors of :meth:`check`."""
        own = self._own_id()
        if own == self._owner and self._clock() < self._read_again_at:
            return own
        if self._owner not in {None, own}:
            raise ClusterReplaced(f"the cluster {own}", f"the cluster {self._owner}")
        error = self._taken(own, self._agree(own))
        if error is not None:
            raise error
        self._read_again_at = self._clock() + _READ_AGAIN
        return own

    def _agree(self, own: str) -> str:
        """The id of the cluster that owns the name: the own one, if nobody had it."""
        known = self._read()
        if known is None:
            try:
                self._cluster.store.put(self._key, ClusterOwner(cluster_id=own).to_bytes(), if_none_match=True)
            except PreconditionFailed:
                known = self._read()
        return own if known is None else known.value.cluster_id

    def _read(self) -> Version[ClusterOwner] | None:
        try:
            return ClusterOwner.load_version(self._cluster.store, self._key)
        except NotFound:
            return None

    def _taken(self, own: str, owner: str) -> ConfigError | None:
        """The error if ``owner`` is another cluster than the ``own`` one."""
        if owner == own:
            return None
        name, key = self._cluster.keys.cluster, f"{self._cluster.store.url}/{self._key}"
        rule = f"{name} belongs to the cluster {owner} in {key}, and this broker is of {own}"
        remedy = "give this one another name; if it replaces that one for good, stop that one's agents, and run"
        return ConfigError("the agent's file", [("cluster", f"{rule}: {remedy} `tidemark-agent take-name {owner}`")])


class DiskIdentity:
    """The id of the cluster of a broker with these log directories, as long as they have its ``identity``."""

    def __init__(self, log_dirs: tuple[Path, ...], identity: Identity) -> None:
        """``identity`` is the broker's at the start."""
        self._log_dirs = log_dirs
        self._first = identity
        self._read: dict[Path, tuple[tuple[int, int], Identity]] = {}

    def __call__(self) -> str:
        """The id at the start. Raises ClusterReplaced if all directories that can be read are another broker's."""
        found = [identity for log_dir in self._log_dirs if (identity := self._identity(log_dir)) is not None]
        if found and not any(identity.is_of(self._first) for identity in found):
            raise ClusterReplaced(str(found[0]), str(self._first))
        return self._first.cluster_id

    def _identity(self, log_dir: Path) -> Identity | None:
        """The identity of a directory; None if it cannot be read: its disk is away, or being formatted."""
        try:
            stat = (log_dir / META).stat()
            mark = stat.st_ino, stat.st_mtime_ns
            known = self._read.get(log_dir)
            if known is None or known[0] != mark:
                known = self._read[log_dir] = mark, read_identity(log_dir)
        except (OSError, FormatError):
            return None
        return known[1]


class GuardedStore(RepeatingStore):
    """``store``, to which nothing is written without a right that the process may lose.

    ``check`` is called before each write, and raises TidemarkError while the right is missing.
    """

    def __init__(self, store: Store, check: Callable[[], object]) -> None:
        super().__init__(store.inner if isinstance(store, RepeatingStore) else store, Retry())
        self._check = check

    @override
    def put(
        self,
        key: str,
        body: bytes | BinaryIO,
        *,
        size: int | None = None,
        crc32c: int | None = None,
        if_match: str | None = None,
        if_none_match: bool = False,
    ) -> str:
        """See :meth:`tidemark.store.base.Store.put`. Raises Refused without the right."""
        self._allow(key)
        return super().put(key, body, size=size, crc32c=crc32c, if_match=if_match, if_none_match=if_none_match)

    @override
    def copy(self, source: str, target: str, *, source_etag: str) -> str:
        """See :meth:`tidemark.store.base.Store.copy`. Raises Refused without the right."""
        self._allow(target)
        return super().copy(source, target, source_etag=source_etag)

    def _allow(self, key: str) -> None:
        try:
            self._check()
        except StoreError:
            raise
        except TidemarkError as error:
            raise Refused(key, str(error)) from error
