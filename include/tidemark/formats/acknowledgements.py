"""The acknowledgements of a partition's gaps under ``_acks/``. They count if their content agrees with their key."""

from __future__ import annotations

from tidemark.errors import FormatError
from tidemark.formats.gaps import Acknowledgement
from tidemark.formats.keys import ControlKeys, PartitionKeys
from tidemark.intervals import Intervals
from tidemark.store import Store


def words(store: Store, control: ControlKeys, keys: PartitionKeys) -> list[Acknowledgement]:
    """All of a partition; ``store`` is the deployment's default one.

    Raises:
        FormatError: an object there does not parse, or says something of other offsets than its key names.
        StoreError: the store failed.
    """
    folder = control.acknowledgements(keys.place, keys.partition)
    return [read(store, control, keys, one.key) for one in store.list(folder)]


def acknowledged(store: Store, control: ControlKeys, keys: PartitionKeys) -> Intervals:
    """The offsets of all :func:`words`."""
    return Intervals((one.start, one.end) for one in words(store, control, keys))


def read(store: Store, control: ControlKeys, keys: PartitionKeys, key: str) -> Acknowledgement:
    """The word under ``key``. Raises NotFound, or as :func:`words`."""
    word = Acknowledgement.load(store, key)
    if key != control.acknowledgement(keys.place, keys.partition, word.start, word.end):
        raise FormatError(key, f"is about offsets {word.start} to {word.end}, but its key names others")
    if (word.cluster, word.place, word.partition) != (control.cluster, keys.place, keys.partition):
        raise FormatError(
            key, f"is about {word.cluster}/{word.place}-{word.partition}, but its key names another partition"
        )
    return word
