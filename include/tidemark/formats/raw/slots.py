"""The numbers of slots, which stand for brokers' ids where an agent fetches from brokers without their disks."""

from __future__ import annotations

from typing import Final

from tidemark.formats.raw.manifest import Origin

FIRST_SLOT: Final = 2_000_000_000
"""The number of slot 0. Kafka's ids are small, and a pack's name has ten digits."""


def origin_of(number: int) -> Origin:
    """The origin of the packs of a broker, or of the slot that ``number`` stands for."""
    return "fetch" if number >= FIRST_SLOT else "disk"


def of_broker(number: int) -> str:
    """``broker 3``, or ``slot 3`` for the number that stands for it, as messages name an agent's place."""
    return f"slot {number - FIRST_SLOT}" if number >= FIRST_SLOT else f"broker {number}"
