"""What of a hole the store has after all: segments that another replica's agent brought, with boundaries of its own.

Replicas roll where they like, so a segment that covers a hole may start far below it, and below line 1 of
``offset.wm``, from where a leader's agent lists. Relative offsets in a segment have
31 bits: none reaches further.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import takewhile
from typing import NamedTuple

from tidemark.formats.gaps import Gap
from tidemark.formats.keys import OFFSET_DIGITS, PartitionKeys
from tidemark.intervals import Intervals
from tidemark.store import ObjectInfo, Store
from uploader_agent.remote import manifests
from uploader_agent.remote.manifests import StoredManifest

REACH = 1 << 31
"""Offsets that a segment can span (Kafka's ``LogSegment.canConvertToRelativeOffset``)."""

_SLACK = timedelta(hours=1)
"""How far the clocks of a store and of an agent may be apart."""

_NEAREST = 64
"""Manifests below a hole that are read whatever their age: a leader that died may have written one unseen."""


class Based(NamedTuple):
    """An object of the segment that starts at ``base_offset``."""

    base_offset: int
    info: ObjectInfo


@dataclass(frozen=True, slots=True)
class StoredListing:
    """The manifests and the ``.log`` objects of a range, by base offset."""

    manifests: list[Based] = field(default_factory=list)
    logs: list[Based] = field(default_factory=list)


def list_segments(store: Store, keys: PartitionKeys, start: int, end: int | None = None) -> StoredListing:
    """What is listed of the segments that start in ``[start, end)``."""
    found = StoredListing()
    named = (
        (name, info)
        for info in store.list(keys.folder, start_after=f"{keys.folder}{start:0{OFFSET_DIGITS}d}")
        if (name := keys.base_offset(info.key)) is not None
    )
    for (base, extension), info in takewhile(lambda one: end is None or one[0][0] < end, named):
        if extension == manifests.EXTENSION:
            found.manifests.append(Based(base, info))
        elif extension == "log":
            found.logs.append(Based(base, info))
    return found


def manifests_of(store: Store, keys: PartitionKeys) -> Iterator[Based]:
    """All manifests of a partition, by base offset, as they are listed."""
    for info in store.list(keys.folder):
        named = keys.base_offset(info.key)
        if named is not None and named[1] == manifests.EXTENSION:
            yield Based(named[0], info)


def reaching(store: Store, keys: PartitionKeys, holes: Intervals) -> StoredListing:
    """What is listed of the segments that may overlap ``holes``, of which there is at least one."""
    return list_segments(store, keys, max(0, holes.parts[0].start - REACH), holes.parts[-1].end)


def read_news(
    store: Store,
    keys: PartitionKeys,
    listing: StoredListing,
    known: Mapping[int, str],
    holes: Intervals,
    gaps: tuple[Gap, ...],
) -> list[StoredManifest]:
    """Read the manifests of ``listing`` that may cover ``holes``; ``known`` are those read already, base → ETag.

    For holes that stand in ``gaps`` these are the ones written since; for the others also the nearest below.
    """
    recorded = Intervals((gap.start, gap.end) for gap in gaps)
    since = min((gap.detected_at for gap in gaps), default=None)
    near: set[int] = set()
    for hole in holes - recorded:
        near |= {
            one.base_offset for one in [one for one in listing.manifests if one.base_offset < hole.end][-_NEAREST:]
        }
    chosen = [
        base
        for base, info in listing.manifests
        if known.get(base) != info.etag
        and (base in near or base in known or (since is not None and info.modified >= since - _SLACK))
    ]
    return [found for base in chosen if (found := manifests.read(store, keys, base)) is not None]
