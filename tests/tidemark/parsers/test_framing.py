"""Confluent's framing, over whole arrays."""

from __future__ import annotations

import random

import pyarrow as pa

from tidemark.parsers.confluent_framing import HEAD, NOT_FRAMED, unframed


def framed(rng: random.Random) -> bytes:
    return b"\0" + rng.randbytes(HEAD - 1 + rng.randrange(9))


def test_frames_are_taken_off_and_what_has_none_is_refused(rng: random.Random) -> None:
    def is_framed(value: bytes | None) -> bool:
        return value is not None and len(value) >= HEAD and value[0] == 0

    for _ in range(200):
        made = (rng.choice([None, framed(rng), framed(rng), rng.randbytes(rng.randrange(8))]) for _ in range(40))
        values = [one for one in made if rng.random() < 0.9]
        array = pa.array([b"before", *values, b"behind"], pa.binary()).slice(1, len(values))
        contents, refused = unframed(array)
        assert contents.to_pylist() == [one[HEAD:] if one and is_framed(one) else None for one in values]
        wrong = [row for row, one in enumerate(values) if one is not None and not is_framed(one)]
        assert refused == dict.fromkeys(wrong, NOT_FRAMED)
