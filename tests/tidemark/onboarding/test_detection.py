from __future__ import annotations

import struct

import pytest

from tidemark.onboarding.detection import detect, shape_of


def framed(number: int, content: bytes) -> bytes:
    return struct.pack(">bI", 0, number) + content


@pytest.mark.parametrize(
    ("value", "shape"),
    [
        (b'{"a": 1}', "json"),
        (b"\xef\xbb\xbf{}", "json"),
        (b"[1, 2]", "json value"),
        (b"17", "json value"),
        ("größer\tals".encode(), "text"),
        (b"Obj\x01rest", "avro container"),
        (b"\x08\x96\x01", "protobuf"),
        (b"\x12\x03abc\x18\x01", "protobuf"),
        (b"\x12\xff\x01abc", "binary"),
        (b"\x0b\x0c", "binary"),
        (b"\xff\xfe\xfd", "binary"),
        (b"", "empty"),
    ],
)
def test_a_value_has_a_shape(value: bytes, shape: str) -> None:
    assert shape_of(value) == shape


def test_framed_values_name_their_schemas() -> None:
    found = detect([framed(7, b'{"a": 1}'), framed(7, b'{"a": 2}'), framed(9, b'{"a": 3}'), None])
    assert (found.framing, found.shape, found.numbers) == ("confluent", "json", {7: 2, 9: 1})
    assert (found.values, found.tombstones) == (3, 1)


def test_binary_values_that_start_with_zero_are_not_framed_if_they_name_many_schemas() -> None:
    assert detect([framed(number, b"\xff") for number in range(1, 100)]).framing == "none"


def test_a_majority_decides_and_the_rest_is_counted() -> None:
    found = detect([b'{"a": 1}'] * 3 + [b"text"])
    assert (found.shape, found.shares) == ("json", {"json": 0.75, "text": 0.25})
    assert detect([b"{}", b"text", b"\xff"]).shape == "binary", "no majority"
    assert detect([None]).shape == "empty"
