"""Fields of records that no column takes, by name, with the number of rows that have each. The names are bounded.

The counts of rows add up to the same result for any division into batches or tasks: the names kept are the first ones
by their text, for any counts, and a name that is among the first of all is so in each part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

MAX_NAMES: Final = 1000
"""The most names that are counted each by itself."""

MAX_LENGTH: Final = 200
"""The most characters of a name."""

OTHERS: Final = "…"
"""The entry of all other names: it is the sum of their counts, and may be larger than the number of rows."""


def field_name(*path: str) -> str:
    """The name of the field under ``path``, joined by points; a key may have points of its own. Names may be cut.

    Names are text in UTF-8: half of a surrogate pair, which JSON may have in a key, becomes its escape.
    """
    name = ".".join(path)
    name = name if len(name) <= MAX_LENGTH else f"{name[: MAX_LENGTH - len(OTHERS)]}{OTHERS}"
    return name.encode(errors="backslashreplace").decode()


def summed(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The sum of ``counts``: the first MAX_NAMES names by their text, and OTHERS."""
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
        if len(total) > 2 * MAX_NAMES:
            total = Counter(_first(total))
    return _first(total)


def largest(counts: Mapping[str, int], most: int) -> dict[str, int]:
    """``counts`` of the ``most`` names with the most rows, and then OTHERS."""
    names = sorted(counts.keys() - {OTHERS}, key=lambda name: (-counts[name], name))[:most]
    return _kept(counts, names)


def _first(counts: Mapping[str, int]) -> dict[str, int]:
    return _kept(counts, sorted(counts.keys() - {OTHERS})[:MAX_NAMES])


def _kept(counts: Mapping[str, int], names: Iterable[str]) -> dict[str, int]:
    kept = {name: counts[name] for name in names}
    others = sum(counts.values()) - sum(kept.values())
    return {**kept, OTHERS: others} if others else kept
