"""Which change of a column's type is a widening: each value that the old type has, the new one has as well. Pure.

Types are those of Delta's schema in JSON (https://github.com/delta-io/delta, PROTOCOL.md, Schema Serialization Format).
"""

from __future__ import annotations

import re
from typing import Any, Final

_WIDER: Final = (("byte", "short", "integer", "long"), ("float", "double"))
_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")


def is_wider(before: Any, after: Any) -> bool:
    """Whether ``after`` is ``before``, or wider: a longer number, or a list or struct of such."""
    if before == after:
        return True
    if isinstance(before, dict) and isinstance(after, dict) and before["type"] == after["type"]:
        if before["type"] == "array":
            return is_wider(before["elementType"], after["elementType"])
        if before["type"] == "struct":
            return _are_wider(before["fields"], after["fields"])
    if not (isinstance(before, str) and isinstance(after, str)):
        return False
    if any(before in row and after in row and row.index(before) < row.index(after) for row in _WIDER):
        return True
    old, new = _DECIMAL.fullmatch(before), _DECIMAL.fullmatch(after)
    if old is None or new is None:
        return False
    digits, scale = int(new[1]), int(new[2])
    return scale >= int(old[2]) and digits - scale >= int(old[1]) - int(old[2])


def _are_wider(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> bool:
    same = [one["name"] for one in before] == [one["name"] for one in after]
    return same and all(is_wider(one["type"], other["type"]) for one, other in zip(before, after, strict=True))
