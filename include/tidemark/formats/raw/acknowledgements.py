"""The acknowledgements of a partition's gaps under ``_acks/``. They count if their content agrees with their key."""

from __future__ import annotations

from collections.abc import Iterable

from tidemark.errors import FormatError
from tidemark.formats.keys import ControlKeys, PartitionKeys
from tidemark.formats.raw.gaps import Acknowledgement, Gap
from tidemark.intervals import Intervals
from tidemark.store import Store


def words(store: Store, control: ControlKeys, keys: PartitionKeys) -> list[Acknowledgement]:
    """All acknowledgements of a partition; ``store`` is the deployment's default store.

    Raises:
        FormatError: an object does not parse, or is about other offsets than its key names.
        StoreError: the store failed.
    """
    folder = control.acknowledgements(keys.place, keys.partition)
    return [read(store, control, keys, info.key) for info in store.list(folder)]


def acknowledged(store: Store, control: ControlKeys, keys: PartitionKeys) -> Intervals:
    """The offsets of all :func:`words`."""
    return Intervals.of(words(store, control, keys))


def split_acknowledged(gaps: Iterable[Gap], acknowledged: Intervals) -> tuple[tuple[Gap, ...], tuple[Gap, ...]]:
    """The parts of ``gaps`` that hold the partition up, and the parts that a person has acknowledged."""
    holding: list[Gap] = []
    passed: list[Gap] = []
    for gap in gaps:
        whole = Intervals.of([gap])
        holding += [gap.model_copy(update=part._asdict()) for part in whole - acknowledged]
        passed += [gap.model_copy(update=part._asdict()) for part in whole & acknowledged]
    return tuple(holding), tuple(passed)


def read(store: Store, control: ControlKeys, keys: PartitionKeys, key: str) -> Acknowledgement:
    """The acknowledgement under ``key``. Raises NotFound, or the errors of :func:`words`."""
    stored = Acknowledgement.load(store, key)
    if key != control.acknowledgement(keys.place, keys.partition, stored.start, stored.end):
        raise FormatError(key, f"is about offsets {stored.start} to {stored.end}, but its key names others")
    if (stored.cluster, stored.place, stored.partition) != (control.cluster, keys.place, keys.partition):
        raise FormatError(
            key, f"is about {stored.cluster}/{stored.place}-{stored.partition}, but its key names another partition"
        )
    return stored
