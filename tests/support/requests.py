"""The requests that a test makes of stores in directories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tidemark.store.local import LocalStore


class Requests:
    """Counts what stores in directories are asked for while ``monkeypatch`` lasts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Count from now on: ``counts`` by kind, and the keys of ``gets`` and ``lists``."""
        self.counts: Counter[str] = Counter()
        self.gets: list[str] = []
        self.lists: list[str] = []
        get, listed, put = LocalStore.get, LocalStore.list, LocalStore.put

        def counted_get(store: LocalStore, key: str, **of: Any) -> Any:
            self.counts["get"] += 1
            self.gets.append(key)
            return get(store, key, **of)

        def counted_list(store: LocalStore, prefix: str, **of: Any) -> Iterator[Any]:
            self.counts["list"] += 1
            self.lists.append(prefix)
            return listed(store, prefix, **of)

        def counted_put(store: LocalStore, *arguments: Any, **of: Any) -> str:
            self.counts["put"] += 1
            return put(store, *arguments, **of)

        monkeypatch.setattr(LocalStore, "get", counted_get)
        monkeypatch.setattr(LocalStore, "list", counted_list)
        monkeypatch.setattr(LocalStore, "put", counted_put)

    def clear(self) -> None:
        """Count anew."""
        self.counts.clear()
        self.gets.clear()
        self.lists.clear()
