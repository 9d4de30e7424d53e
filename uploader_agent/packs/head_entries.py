"""The entries of a head in the JSON form in which they are stored.

A broker may have thousands. An entry takes some 420 bytes as JSON, and 3 KiB as a model, which is made on demand.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple, Self

from typing_extensions import override

from tidemark.formats.raw.head import EntryKey, HeadEntry, entry_json


class _Line(NamedTuple):
    tail_end: int
    json: bytes


class HeadEntries(Mapping[EntryKey, HeadEntry]):
    """Entries by key, in the order in which they were first put."""

    def __init__(self, entries: Iterable[HeadEntry] = ()) -> None:
        self._lines = {entry.key: _Line(entry.tail_end, entry_json(entry)) for entry in entries}
        self._size = sum(len(line.json) + 1 for line in self._lines.values())

    @override
    def __getitem__(self, key: EntryKey) -> HeadEntry:
        return HeadEntry.model_validate_json(self._lines[key].json)

    @override
    def __iter__(self) -> Iterator[EntryKey]:
        return iter(self._lines)

    @override
    def __len__(self) -> int:
        return len(self._lines)

    @override
    def __contains__(self, key: object) -> bool:
        return key in self._lines

    @property
    def lines(self) -> Collection[bytes]:
        """All entries, as a head has them."""
        return [line.json for line in self._lines.values()]

    def tail_end(self, key: EntryKey) -> int | None:
        """The end of the tail of an entry; None if there is no such entry."""
        line = self._lines.get(key)
        return line.tail_end if line is not None else None

    def copy(self) -> Self:
        """A copy, which may be changed."""
        copy = type(self)()
        copy._lines, copy._size = dict(self._lines), self._size
        return copy

    def put(self, entry: HeadEntry, most: int) -> bool:
        """Add or replace the entry. Return False, and change nothing, if all would take more than ``most`` bytes."""
        line, former = _Line(entry.tail_end, entry_json(entry)), self._lines.get(entry.key)
        size = self._size + len(line.json) + 1 - (len(former.json) + 1 if former is not None else 0)
        if size > most:
            return False
        self._lines[entry.key], self._size = line, size
        return True

    def remove(self, key: EntryKey) -> None:
        """Remove an entry."""
        self._size -= len(self._lines.pop(key).json) + 1
