"""Bytes that may lie under any key, and that no reader may fall over; objects that the store does not give."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from tidemark.errors import AccessDenied
from tidemark.store.local import LocalStore

HUGE: Final = "a hole of 100 MiB"
LATER: Final = "a later format"

BODIES: Final = {
    "nothing": b"",
    "no field": b"{}",
    "another type": b"[]",
    "a string": b'"orders"',
    "an unfinished object": b'{"format": 1, "cluster": "kafka-1", "entries": [',
    "deep nesting": b"[" * 200_000,
    "deep nesting in a field": b'{"entries": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "deep nesting in an unknown field": b'{"unknown": ' + b'{"a":' * 100_000 + b"0" + b"}" * 100_001,
    "no UTF-8": b'{"cluster": "\xff\xfe", "entries": []}',
    "wrong types": b'{"entries": [{"topic": ["orders"], "partition": {}, "next_offset": "far"}]}',
    "a million wrong items": b'{"entries": [' + b"0," * 1_000_000 + b"0]}",
    "a number of 5,000 digits": b'{"broker": ' + b"9" * 5000 + b', "entries": [{"topic": "orders"}]}',
    "numbers that are none": b'{"entries": [{"topic": "orders", "bytes_per_offset": NaN, "next_offset": Infinity}]}',
    LATER: b'{"format": 3, "entries": []}',
    HUGE: b"",
}
"""By what is wrong with them. :data:`HUGE` is made by :func:`spoil`."""


def spoil(root: Path, key: str, what: str) -> None:
    """Put the bytes of :data:`BODIES` under ``key`` of the store in the directory ``root``."""
    path = root / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # else the inode stays, and with it maybe the ETag
    with path.open("wb") as file:
        file.write(BODIES[what])
        if what == HUGE:
            file.truncate(100 << 20)


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The keys whose objects the store lists and does not give."""
    keys: set[str] = set()
    get = LocalStore.get

    def refusing(store: LocalStore, key: str, **of: Any) -> Any:
        if key in keys:
            raise AccessDenied(key, "not with this key")
        return get(store, key, **of)

    monkeypatch.setattr(LocalStore, "get", refusing)
    return keys
