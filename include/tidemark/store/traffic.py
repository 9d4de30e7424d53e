"""Who meters what goes to a store."""

from __future__ import annotations

from typing import Protocol


class Traffic(Protocol):
    """The hook that is called for what is sent to the store, and may slow it down."""

    def request(self, operation: str) -> None:
        """A request of this operation, by its name on S3, is about to be sent."""
        ...

    def admit(self, size: int, total: int) -> int:
        """Wait until some of the next ``size`` bytes of a request of ``total`` bytes may be sent; returns how many."""
        ...


class FreeTraffic:
    """Nobody is told, and all may go at once."""

    def request(self, operation: str) -> None:
        """See :class:`Traffic`."""

    def admit(self, size: int, total: int) -> int:
        """See :class:`Traffic`."""
        del total
        return size
