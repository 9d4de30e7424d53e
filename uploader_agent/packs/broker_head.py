"""This broker's head in one bucket and prefix: read once, then replaced by If-Match.

Another version under the key means that another process of the same broker writes it, or that a write whose reply was
lost has arrived. Then it is read again, and every partition goes on from what it says.
"""

from __future__ import annotations

from crc32c import crc32c

from tidemark.errors import NotFound, PreconditionFailed, StoreError, UnknownOutcome
from tidemark.formats import head as format_
from tidemark.formats.head import Head
from tidemark.formats.keys import ControlKeys
from tidemark.store import Store
from uploader_agent import __version__
from uploader_agent.packs.head_entries import HeadEntries
from uploader_agent.runtime import Runtime


class BrokerHead:
    """For one thread. ``version`` goes up whenever it was read."""

    def __init__(self, store: Store, control: ControlKeys, broker: int, runtime: Runtime) -> None:
        self.store = store
        self.control = control
        self.version = 0
        self._broker = broker
        self._runtime = runtime
        self._known = False
        self._etag: str | None = None
        self._entries = HeadEntries()

    @property
    def entries(self) -> HeadEntries:
        """The entries as they were read or put last: to change them, take a copy."""
        return self._entries

    def read(self) -> None:
        """Read the head, unless it is known. Raises as :func:`tidemark.formats.head.load`."""
        if not self._known:
            found = format_.load(self.store, self.control, self._broker)
            self._entries = HeadEntries(found.value.entries if found else ())
            self._etag = found.etag if found else None
            self._known = True
            self.version += 1

    def put(self, entries: HeadEntries) -> None:
        """Store ``entries`` in place of what is known to be stored.

        Raises:
            PreconditionFailed: another version was there; the head is read again before it is used.
            UnknownOutcome: likewise.
            StoreError: the store failed, and nothing was written.
        """
        head = Head(
            cluster=self.control.cluster,
            broker=self._broker,
            agent=__version__,
            written_at=self._runtime.utc_now(),
        )
        key, body = format_.render(head, self.control, entries.lines)
        try:
            etag = self.store.put(key, body, crc32c=crc32c(body), if_match=self._etag, if_none_match=self._etag is None)
        except PreconditionFailed:
            self._known = False
            raise
        except UnknownOutcome as error:
            self._known = False
            etag = self._read_back(key, body, error)
            self._known = True
        except StoreError:
            raise
        except Exception:
            self._known = False  # whether it was written is not known
            raise
        self._etag, self._entries = etag, entries.copy()

    def _read_back(self, key: str, body: bytes, error: UnknownOutcome) -> str:
        """The ETag, if the store has ``body``. Raises ``error`` if it has something else."""
        try:
            there = self.store.get(key, limit=Head.most_bytes)
        except NotFound:
            raise error from None
        if there.body != body:
            raise error
        return there.etag
