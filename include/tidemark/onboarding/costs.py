"""Prices of requests to the store, and the requests of a segment and of a live landing.

``bench.agent`` and ``bench.idle`` measure the requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidemark.formats.raw.watermark_index import PACKS_PER_FRESHNESS

DAYS: Final = 30.4
"""Days in a month."""


@dataclass(frozen=True)
class Prices:
    """Prices in US dollars, from the price list of S3 Standard in us-east-1.

    For a request (``put``: PUT, COPY, POST, LIST; ``get``: GET, HEAD), and for a byte ``stored`` for a month (the first
    50 TB).
    """

    put: float = 0.005 / 1000
    get: float = 0.0004 / 1000
    stored: float = 0.023 / (1 << 30)


@dataclass(frozen=True)
class PerSegment:
    """Requests for one segment: its objects, manifest and ``offset.wm``."""

    put: float = 5


@dataclass(frozen=True)
class PerLanding:
    """Requests of a live landing: for a broker's head and each pack, for a partition, for a topic's commit.

    The scan reads each version of a head, and the landing reads the last one again.
    """

    head_get: float = PACKS_PER_FRESHNESS + 1
    pack_get: float = 3
    partition_get: float = 1
    range_get: float = 1
    topic_put: float = 7
    topic_get: float = 12


@dataclass(frozen=True)
class Line:
    """One line of the table: requests and dollars in a month."""

    what: str
    requests: float
    dollars: float
