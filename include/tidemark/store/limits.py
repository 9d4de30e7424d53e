"""What the requests of all stores keep to, whatever the store and its user: nobody sets these values."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """The values, each with its reason. Tests pass others."""

    connections: int = 66
    """Idle connections that a process keeps: those of an agent with the most uploads at a time (64), and two."""

    connect_timeout: timedelta = timedelta(seconds=5)
    """Time to connect to an address. A lost packet of the handshake is sent again after one second, and after three."""

    no_progress: timedelta = timedelta(seconds=30)
    """Time without a byte after which a request ends. S3 may think for some seconds before it answers."""

    min_rate: int = 256 << 10
    """Bytes a second that a request has time for beyond the deadline: slower is a line that no broker can do with."""

    multipart_from: int = 1 << 30
    """Bytes above which an object goes to S3 in parts. A segment of Kafka's default size, 1 GiB, takes one request."""


LIMITS: Final = RequestLimits()
"""The limits outside of tests."""
