"""What was used longest ago is dropped first, and never more than must be."""

from __future__ import annotations

import random

from tidemark.lru import Lru


def test_what_was_used_longest_ago_is_dropped() -> None:
    kept: Lru[str, int] = Lru(2)
    kept.keep("a", 1)
    kept.keep("b", 2)
    assert kept.get("a") == 1
    kept.keep("c", 3)
    assert (kept.get("a"), kept.get("b"), kept.get("c")) == (1, None, 3)
    assert "a" in kept
    kept.forget("a")
    kept.forget("a")
    assert "a" not in kept


def test_a_value_that_is_too_heavy_is_not_kept_and_drops_nothing_but_its_former_self() -> None:
    kept: Lru[str, bytes] = Lru(10, len)
    kept.keep("a", b"1234")
    kept.keep("b", b"1234")
    kept.keep("b", bytes(11))
    assert (kept.get("a"), kept.get("b")) == (b"1234", None)
    assert Lru[str, bytes](0, len).get("a") is None


def test_one_that_must_be_kept_is_kept_alone() -> None:
    kept: Lru[str, bytes] = Lru(10, len, at_least=1)
    kept.keep("a", b"1")
    kept.keep("b", bytes(11))
    assert (kept.get("a"), kept.get("b")) == (None, bytes(11))
    kept.keep("c", b"1")
    assert (kept.get("b"), kept.get("c")) == (None, b"1")


def test_it_is_what_a_list_in_the_order_of_use_gives(rng: random.Random) -> None:
    limit, at_least = rng.randint(0, 20), rng.choice([0, 1])
    kept: Lru[int, bytes] = Lru(limit, len, at_least=at_least)
    known: list[tuple[int, bytes]] = []  # the last one was used last
    for _ in range(2000):
        key = rng.randint(0, 8)
        before = next((value for one, value in known if one == key), None)
        if rng.random() < 0.5:
            assert kept.get(key) == before
            if before is not None:
                known = [*(entry for entry in known if entry[0] != key), (key, before)]
            continue
        value = bytes(rng.randint(0, 25))
        kept.keep(key, value)
        known = [entry for entry in known if entry[0] != key]
        if len(value) > limit and not at_least:
            continue
        known.append((key, value))
        while sum(len(one) for _, one in known) > limit and len(known) > at_least:
            known.pop(0)
    assert [key for key in range(9) if key in kept] == sorted(key for key, _ in known)
