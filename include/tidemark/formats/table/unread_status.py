"""What the last run that lands a topic could not do, for readers without its log."""

from __future__ import annotations

from typing import ClassVar, Final

from pydantic import AwareDatetime

from tidemark.formats import object_sizes
from tidemark.formats.base import StoredObject

MOST_MESSAGES: Final = 20


class UnreadStatus(StoredObject):
    """``_tidemark/_unread/<cluster>/<topic>.json``: the objects of raw that the run planned ``at`` could not read.

    They are heads, packs, and ``.txnindex`` objects. Each of ``messages`` begins with an object's name, followed by the
    problem; of many, some are left out. ``since`` is the time of the first of the successive runs with unread objects.
    Without messages, all could be read. ``failure`` is the error of a run that failed at ``failed_at``, until one does
    not.
    """

    most_bytes: ClassVar[int] = object_sizes.SMALL

    cluster: str
    topic: str
    at: AwareDatetime
    since: AwareDatetime
    messages: tuple[str, ...] = ()
    count: int = 0
    failed_at: AwareDatetime | None = None
    failure: str = ""

    @property
    def objects(self) -> list[str]:
        """The names of the unread objects."""
        return sorted({message.partition(": ")[0] for message in self.messages})
