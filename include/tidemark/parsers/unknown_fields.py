"""Fields of records that no column takes, by name: how many rows have each. What is kept of names is bounded.

Counts of rows that are cut into batches, or tasks, in another way add up to the same: the names that stay are the first
ones by their text, whatever their numbers, and a name that is one of the first of all is so in each part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

MAX_NAMES: Final = 1000
"""Names that are counted each by itself."""

MAX_LENGTH: Final = 200
"""Characters of a name."""

OTHERS: Final = "…"
"""What stands for all other names: its number is the sum of theirs, so that it may be larger than that of rows."""


def field_name(*path: str) -> str:
    """The name of the field under ``path``, joined by points; a key may have some of its own. Names may be cut.

    Names are text in UTF-8: half of a surrogate pair, which JSON may have in a key, becomes its escape.
    """
    name = ".".join(path)
    name = name if len(name) <= MAX_LENGTH else f"{name[: MAX_LENGTH - len(OTHERS)]}{OTHERS}"
    return name.encode(errors="backslashreplace").decode()


def summed(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """``counts`` together: the first MAX_NAMES names by their text, and OTHERS."""
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
        if len(total) > 2 * MAX_NAMES:
            total = Counter(_first(total))
    return _first(total)


def largest(counts: Mapping[str, int], most: int) -> dict[str, int]:
    """``counts``, of at most so many names, those of most rows first; then OTHERS."""
    names = sorted(counts.keys() - {OTHERS}, key=lambda name: (-counts[name], name))[:most]
    return _kept(counts, names)


def _first(counts: Mapping[str, int]) -> dict[str, int]:
    return _kept(counts, sorted(counts.keys() - {OTHERS})[:MAX_NAMES])


def _kept(counts: Mapping[str, int], names: Iterable[str]) -> dict[str, int]:
    found = {name: counts[name] for name in names}
    others = sum(counts.values()) - sum(found.values())
    return {**found, OTHERS: others} if others else found
