"""The entries of a head as the JSON that they are stored as.

A broker may have thousands of them: each takes some 420 bytes as JSON, and 3 KiB as a model, which is made when it is
asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple, Self

from typing_extensions import override

from tidemark.formats.head import EntryKey, HeadEntry, entry_json


class _Line(NamedTuple):
    tail_end: int
    json: bytes


class HeadEntries(Mapping[EntryKey, HeadEntry]):
    """By what they are for, in the order in which they were first put."""

    def __init__(self, entries: Iterable[HeadEntry] = ()) -> None:
        self._lines = {one.key: _Line(one.tail_end, entry_json(one)) for one in entries}
        self._size = sum(len(one.json) + 1 for one in self._lines.values())

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
        return [one.json for one in self._lines.values()]

    def tail_end(self, key: EntryKey) -> int | None:
        """Where the tail of an entry ends; None if there is no such entry."""
        found = self._lines.get(key)
        return found.tail_end if found is not None else None

    def copy(self) -> Self:
        """A copy, to change it."""
        made = type(self)()
        made._lines, made._size = dict(self._lines), self._size
        return made

    def put(self, entry: HeadEntry, most: int) -> bool:
        """Add the entry, or replace it; False, and nothing changes, if all would take more than ``most`` bytes."""
        line, former = _Line(entry.tail_end, entry_json(entry)), self._lines.get(entry.key)
        size = self._size + len(line.json) + 1 - (len(former.json) + 1 if former is not None else 0)
        if size > most:
            return False
        self._lines[entry.key], self._size = line, size
        return True

    def remove(self, key: EntryKey) -> None:
        """Remove an entry."""
        self._size -= len(self._lines.pop(key).json) + 1
