"""Lists stored segments that cover a hole: another replica's agent uploaded them, with other boundaries.

Each replica rolls its segments independently, so a segment that covers a hole may start far below it, and below line 1
of ``offset.wm``, from which a leader's agent lists. Relative offsets in a segment have 31 bits, which bounds its reach.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from tidemark.formats.keys import MANIFEST_EXTENSION, PartitionKeys, SegmentName
from tidemark.formats.raw.gaps import Gap
from tidemark.intervals import Intervals
from tidemark.raw import objects
from tidemark.raw.objects import REACH, ListedObject, StoredManifest, read_manifest
from tidemark.store import Store

_SLACK = timedelta(hours=1)
"""The most difference between the clocks of a store and of an agent."""

_NEAREST = 64
"""Manifests below a hole that are read at any age: a leader may have written one just before it died."""


@dataclass(frozen=True, slots=True)
class StoredListing:
    """The manifests and the ``.log`` objects of a range, by name."""

    manifests: list[ListedObject] = field(default_factory=list)
    logs: list[ListedObject] = field(default_factory=list)


def list_segments(store: Store, keys: PartitionKeys, start: int, end: int | None = None) -> StoredListing:
    """The listed segments that start in ``[start, end)``."""
    listing = StoredListing()
    for entry in objects.listed(store, keys, start, end):
        if entry.extension == MANIFEST_EXTENSION:
            listing.manifests.append(entry)
        elif entry.extension == "log":
            listing.logs.append(entry)
    return listing


def reaching(store: Store, keys: PartitionKeys, holes: Intervals) -> StoredListing:
    """The listed segments that may overlap ``holes``, which are not empty."""
    return list_segments(store, keys, max(0, holes.parts[0].start - REACH), holes.parts[-1].end)


def read_news(
    store: Store,
    keys: PartitionKeys,
    listing: StoredListing,
    etags: Mapping[SegmentName, str],
    holes: Intervals,
    gaps: tuple[Gap, ...],
) -> list[StoredManifest]:
    """Read the manifests of ``listing`` that may cover ``holes``; ``etags`` are of the manifests already read.

    For holes in ``gaps``, only manifests written since may cover them; for others, the nearest ones below may too.
    """
    recorded = Intervals.of(gaps)
    since = min((gap.detected_at for gap in gaps), default=None)
    near: set[SegmentName] = set()
    for hole in holes - recorded:
        below = [entry.name for entry in listing.manifests if entry.name.base < hole.end]
        near |= {*below[-_NEAREST:]}
    chosen = [
        name
        for name, _, info in listing.manifests
        if etags.get(name) != info.etag
        and (name in near or name in etags or (since is not None and info.modified >= since - _SLACK))
    ]
    return [manifest for name in chosen if (manifest := read_manifest(store, keys, name)) is not None]
