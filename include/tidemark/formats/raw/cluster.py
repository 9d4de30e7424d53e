"""What the store says of a cluster: who owns its name, and the slots of its agents without a broker's disk.

All keys have the name, and two clusters must not share one. The numbers of slots stand for brokers' ids.
"""

from __future__ import annotations

from typing import Final

from pydantic import Field

from tidemark.formats.base import StoredObject
from tidemark.formats.raw.manifest import Origin


class ClusterOwner(StoredObject):
    """``_fetch/<cluster>/cluster.json``: the id of the Kafka cluster that owns the name; agents of another are refused.

    ``former`` are the ids of the clusters that owned it before, oldest first: a person has handed the name over.
    """

    cluster_id: str
    former: tuple[str, ...] = ()


FIRST_SLOT: Final = 2_000_000_000
"""The number of slot 0. Kafka's ids are small, and a pack's name has ten digits."""


def origin_of(number: int) -> Origin:
    """The origin of the packs of a broker, or of the slot that ``number`` stands for."""
    return "fetch" if number >= FIRST_SLOT else "disk"


def of_broker(number: int) -> str:
    """``broker 3``, or ``slot 3`` for the number that stands for it, as messages name an agent's place."""
    return f"slot {number - FIRST_SLOT}" if number >= FIRST_SLOT else f"broker {number}"


class SlotCount(StoredObject):
    """``_fetch/<cluster>/slots.json``: the number of slots, which an agent with another one refuses."""

    slots: int = Field(ge=1)


class LeaseOfSlot(StoredObject):
    """``_fetch/<cluster>/<slot>.json``: the process that is a slot, for ``seconds`` after each renewal.

    ``holder`` is drawn at random for each process, and empty after it has ended. ``renewals`` tells versions apart.
    """

    holder: str
    seconds: float = Field(gt=0)
    renewals: int = Field(ge=0)
