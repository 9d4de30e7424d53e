"""The lease of a slot: of two processes with its number one works, and the other waits until the first is silent.

The holder writes the lease anew all the time, by conditional PUT. It counts its time from before its last PUT, and a
standby from after it has seen that PUT, each by its own clock: so no two hold a lease, unless clocks run at different
speeds. A write that was under way when the lease ended may still take effect. That does no harm: nothing in the store
depends on a lease (docs/fetch.md).
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from tidemark.errors import ConfigError, NotFound, PreconditionFailed, StoreError, TidemarkError
from tidemark.formats.base import Version
from tidemark.formats.raw.cluster import LeaseOfSlot, SlotCount
from tidemark.storage import ClusterStore
from uploader_agent.settings import FetchSettings

logger = structlog.get_logger(__name__)


class LeaseLost(TidemarkError):
    """The lease has ended, so another process may be this slot."""


def check_count(cluster: ClusterStore, slots: int) -> None:
    """Have the store state the number of slots, or compare it.

    Raises:
        ConfigError: agents of this cluster share the partitions among another number of slots.
        StoreError, FormatError: the number cannot be read or written.
    """
    key = cluster.keys.slot_count
    try:
        cluster.store.put(key, SlotCount(slots=slots).to_bytes(), if_none_match=True)
    except PreconditionFailed:
        stated = SlotCount.load(cluster.store, key).slots
        if stated != slots:
            rule = f"is {slots}, and the agents of this cluster share its partitions among {stated}"
            remedy = f"stop them all, remove {cluster.store.url}/{key}, and start them with the same number"
            raise ConfigError("fetch", [("slots", f"{rule}: {remedy}")]) from None


class SlotLease:
    """The lease of the slot of ``settings`` for this process."""

    def __init__(
        self,
        settings: FetchSettings,
        cluster: ClusterStore,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        assert settings.lease is not None
        self._seconds = settings.lease.total_seconds()
        self._slot, self._store, self._key = settings.slot, cluster.store, cluster.keys.slot_lease(settings.slot)
        self._holder = uuid.uuid4().hex
        self._renewals = 0
        self._etag = ""
        self._held_until = 0.0
        self._lost = False
        self._clock, self._sleep = clock, sleep
        self._stopping = threading.Event()

    def take(self) -> None:
        """Wait until no other process holds the lease, and take it. Raises StoreError and FormatError."""
        seen, since = "", 0.0
        while True:
            other = self._read()
            now = self._clock()
            if other is not None and other.etag != seen:
                if not seen and other.value.holder:
                    logger.info("slot_waits", slot=self._slot, holder=other.value.holder, seconds=other.value.seconds)
                seen, since = other.etag, now
            free = other is None or not other.value.holder or now - since > other.value.seconds
            if free and self._put(other.etag if other else None):
                logger.info("slot_taken", slot=self._slot, holder=self._holder)
                return
            self._sleep(self._seconds / 10)

    def check(self) -> None:
        """Raise LeaseLost unless this process holds the lease now."""
        self._lost = self._lost or self._clock() >= self._held_until
        self._raise_lost()

    def _raise_lost(self) -> None:
        if self._lost:
            rule = "its lease has ended, as after a pause: another process may have taken it"
            raise LeaseLost(f"slot {self._slot}: {rule}")

    def renew(self) -> None:
        """Renew the lease. A failure of the store leaves it as it is.

        Raises:
            LeaseLost: another process has taken it, or its time is over.
        """
        self.check()
        try:
            if not self._put(self._etag):
                own = self._read()  # the outcome of an earlier PUT may have been unknown
                if own is None or own.value.holder != self._holder:
                    self._lost = True
                    self.check()
                else:
                    self._put(own.etag)
        except StoreError as error:
            logger.warning("lease_not_renewed", slot=self._slot, error=str(error))

    @contextmanager
    def renewed(self, on_lost: Callable[[], object]) -> Iterator[None]:
        """Renew the lease in a thread, until the block ends; then others may take it. ``on_lost`` is called once."""
        thread = threading.Thread(target=self._renew, args=(on_lost,), name="lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            thread.join()
            if not self._lost:
                self._release()
        self._raise_lost()

    def _renew(self, on_lost: Callable[[], object]) -> None:
        try:
            while not self._stopping.wait(self._seconds / 5):
                self.renew()
        except LeaseLost as error:
            logger.error("lease_lost", slot=self._slot, error=str(error))  # noqa: TRY400 - the message has all
            on_lost()

    def _release(self) -> None:
        try:
            self.check()
            self._holder = ""
            self._put(self._etag)
        except (LeaseLost, StoreError) as error:
            logger.info("lease_not_released", slot=self._slot, error=str(error))

    def _read(self) -> Version[LeaseOfSlot] | None:
        try:
            return LeaseOfSlot.load_version(self._store, self._key)
        except NotFound:
            return None

    def _put(self, etag: str | None) -> bool:
        """Write the lease in place of that version; False if there is another one."""
        self._renewals += 1
        body = LeaseOfSlot(holder=self._holder, seconds=self._seconds, renewals=self._renewals).to_bytes()
        begun = self._clock()
        try:
            self._etag = self._store.put(self._key, body, if_match=etag, if_none_match=etag is None)
        except PreconditionFailed:
            return False
        self._held_until = begun + self._seconds
        return True
