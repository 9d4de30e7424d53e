"""Masks: the offsets of erased records. No reader delivers a masked record, and no run lands it.

A mask is created under a key with the digest of its content, and never changes. It counts once the index of its
topic's incarnation names it; the index numbers the masks in the order in which they began to count. A mask names the
leader epoch of each offset, and the restores of its log, since another branch of the log has another record there. It
holds nothing of the records.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import ClassVar, Final, Self

from pydantic import Field

from tidemark.formats import object_sizes
from tidemark.formats.base import Model, StoredObject
from tidemark.formats.keys import ControlKeys
from tidemark.formats.raw.manifest import Restores

MOST_OFFSETS: Final = 1_000_000
"""Most offsets of one mask."""


class MaskedEpoch(Model):
    """Erased offsets of one leader epoch: the first, and then the distance of each from the one before."""

    epoch: int
    deltas: tuple[int, ...] = Field(min_length=1)

    @property
    def offsets(self) -> Iterator[int]:
        """The offsets, ascending."""
        return accumulate(self.deltas)


class Mask(StoredObject):
    """The erased offsets of a partition, all in ``[start, end)``. ``approvals`` are the SHA-256 of the approvals.

    ``restores`` are those of the log that had the records.
    """

    most_bytes: ClassVar[int] = object_sizes.MASK

    cluster: str
    place: str
    partition: int = Field(ge=0)
    start: int = Field(alias="from", ge=0)
    end: int = Field(alias="to", ge=1)
    count: int = Field(ge=1)
    restores: Restores = ()
    approvals: tuple[str, ...] = Field(min_length=1)
    epochs: tuple[MaskedEpoch, ...] = Field(min_length=1)

    @classmethod
    def of(
        cls,
        cluster: str,
        place: str,
        partition: int,
        offsets: Mapping[int, Sequence[int]],
        approvals: Sequence[str],
        restores: Restores = (),
    ) -> Self:
        """The mask of ``offsets``, which are distinct, by leader epoch, in a log with ``restores``."""
        ordered = {epoch: sorted(numbers) for epoch, numbers in sorted(offsets.items())}
        return cls.model_validate(
            {
                "cluster": cluster,
                "place": place,
                "partition": partition,
                "from": min(numbers[0] for numbers in ordered.values()),
                "to": max(numbers[-1] for numbers in ordered.values()) + 1,
                "count": sum(map(len, ordered.values())),
                "restores": restores,
                "approvals": tuple(sorted(approvals)),
                "epochs": tuple(
                    {"epoch": epoch, "deltas": (numbers[0], *(after - before for before, after in pairwise(numbers)))}
                    for epoch, numbers in ordered.items()
                ),
            }
        )

    @property
    def digest(self) -> str:
        """The digest of a new mask's content, which is in the key."""
        return digest_of(self.to_bytes())

    def key(self, control: ControlKeys, digest: str | None = None) -> str:
        """The key of a new mask, or of one that was read with this ``digest``."""
        return control.mask(self.place, self.partition, self.start, self.end, digest or self.digest)


def digest_of(body: bytes) -> str:
    """The digest of a mask's bytes: the writer's, whose version may have other fields than the reader's."""
    return hashlib.sha256(body).hexdigest()[:16]


class MaskName(Model):
    """A mask that counts, and its number in the order of the index."""

    number: int = Field(ge=1)
    partition: int = Field(ge=0)
    start: int = Field(alias="from", ge=0)
    end: int = Field(alias="to", ge=1)
    count: int = Field(ge=1)
    digest: str = Field(pattern="^[0-9a-f]{16}$")


class MaskIndex(StoredObject):
    """The masks of one incarnation of a topic, by number."""

    most_bytes: ClassVar[int] = object_sizes.MASK

    cluster: str
    place: str
    masks: tuple[MaskName, ...] = ()

    @property
    def number(self) -> int:
        """The number of the last mask; 0 without one."""
        return self.masks[-1].number if self.masks else 0

    def within(self, partition: int, start: int, end: int) -> tuple[MaskName, ...]:
        """The masks of ``partition`` that may hold offsets of ``[start, end)``."""
        return tuple(
            mask for mask in self.masks if mask.partition == partition and mask.start < end and mask.end > start
        )

    def key_of(self, control: ControlKeys, mask: MaskName) -> str:
        """The key of a mask of the index."""
        return control.mask(self.place, mask.partition, mask.start, mask.end, mask.digest)

    def also(self, masks: Sequence[Mask]) -> MaskIndex:
        """The index with ``masks`` at its end, except for those that it has."""
        known = {(mask.partition, mask.digest) for mask in self.masks}
        fresh = [mask for mask in masks if (mask.partition, mask.digest) not in known]
        names = (
            MaskName.model_validate(
                {
                    "number": number,
                    "partition": mask.partition,
                    "from": mask.start,
                    "to": mask.end,
                    "count": mask.count,
                    "digest": mask.digest,
                }
            )
            for number, mask in enumerate(fresh, self.number + 1)
        )
        return self.model_copy(update={"masks": (*self.masks, *names)})
