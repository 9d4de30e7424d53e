"""Metering of the bytes and requests sent to a store."""

from __future__ import annotations

from typing import Protocol


class Traffic(Protocol):
    """The hook that is called for each request and its bytes, and may slow them down."""

    def request(self, operation: str) -> None:
        """Note that a request of this operation, by its name on S3, is about to be sent."""
        ...

    def admit(self, size: int, total: int) -> int:
        """Wait until some of the next ``size`` bytes of a request of ``total`` bytes may be sent; return how many."""
        ...


class FreeTraffic:
    """Traffic without metering or limits."""

    def request(self, operation: str) -> None:
        """See :class:`Traffic`."""

    def admit(self, size: int, total: int) -> int:
        """See :class:`Traffic`."""
        del total
        return size
