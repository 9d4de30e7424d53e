from __future__ import annotations

import traceback

import pytest

from tests.tidemark.erasure.asked import asked
from tidemark.cli.erase import MOST_VALUES, read_values
from tidemark.errors import ConfigError
from tidemark.formats import object_sizes


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (b"ada", [b"ada"]),
        (b"ada\nbob\n", [b"ada", b"bob"]),
        (b"ada\r\n bob \r\n", [b"ada", b" bob "]),
        (b"\xef\xbb\xbfada\n", [b"ada"]),
        ("zoë\n".encode(), ["zoë".encode()]),
        (b"ada\nada\n", [b"ada", b"ada"]),
    ],
)
def test_a_line_is_a_value(text: bytes, values: list[bytes]) -> None:
    assert read_values(text, "keys.txt") == values


def test_bytes_are_spelled_in_hexadecimal_digits() -> None:
    assert read_values(b"00aaFF\r\n20\n", "keys.txt", hexadecimal=True) == [b"\0\xaa\xff", b" "]


def test_integers_are_decimal() -> None:
    assert read_values(b"0\n-7\n1182", "keys.txt", integers=True) == [b"0", b"-7", b"1182"]


@pytest.mark.parametrize(
    ("line", "options", "rule"),
    [
        (b"", {}, "is empty"),
        (b"\r", {}, "is empty"),
        (b"zo\xeb@example.com", {}, "is not UTF-8"),
        (b"4711x", {"hexadecimal": True}, "is not bytes in hexadecimal digits"),
        (b"47 11", {"hexadecimal": True}, "is not bytes in hexadecimal digits"),
        (b"471", {"hexadecimal": True}, "is not bytes in hexadecimal digits"),
        *((line, {"integers": True}, "is not a whole number") for line in (b"04711", b"+4711", b"4711.0", b"-0", b"a")),
    ],
)
def test_a_line_that_is_no_value_is_named_by_its_number(line: bytes, options: dict[str, bool], rule: str) -> None:
    text = b"70\n" + line + b"\n70\n"
    with pytest.raises(ConfigError, match=f"^keys.txt: line 2: {rule}") as raised:
        read_values(text, "keys.txt", **options)
    assert "4711" not in f"{raised.value!r} {raised.value.__cause__!r}"
    assert "example.com" not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize(("text", "said"), [(b"", "no lines"), (b"\n", "no lines"), (b"a\n" * 300_000, "300000 lines")])
def test_a_request_has_at_least_one_value_and_not_too_many(text: bytes, said: str) -> None:
    with pytest.raises(ConfigError, match=f"^keys.txt: has {said}; a request has 1 to {MOST_VALUES} values"):
        read_values(text, "keys.txt")


def test_as_many_values_as_may_be_fit_the_object() -> None:
    one, two = len(asked([b"1"]).to_bytes()), len(asked([b"1", b"2"]).to_bytes())
    assert one + MOST_VALUES * (two - one) < object_sizes.ERASURE
