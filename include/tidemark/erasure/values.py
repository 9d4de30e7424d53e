"""The values of a request, as a person gives them: one a line. No message has a value, or a part of one."""

from __future__ import annotations

import codecs
import re
from typing import Final

from tidemark.errors import ConfigError
from tidemark.formats import object_sizes

MOST_VALUES: Final = object_sizes.ERASURE // 80
"""Most values of a request, so that its object stays below its limit."""

_HEX: Final = re.compile(rb"(?:[0-9A-Fa-f]{2})+")
_INTEGER: Final = re.compile(rb"0|-?[1-9][0-9]*")


def read_values(text: bytes, source: str, *, hexadecimal: bool = False, integers: bool = False) -> list[bytes]:
    """The canonical value of each line of ``text``: its UTF-8, or with ``hexadecimal`` the bytes that it spells.

    ``source`` names the text in errors. With ``integers``, each line is a whole number as JSON writes it.

    Raises:
        ConfigError: a line is empty or of another form, or there are no lines, or too many.
    """
    lines = text.removeprefix(codecs.BOM_UTF8).removesuffix(b"\n").split(b"\n")
    if not 0 < len(lines) <= MOST_VALUES or lines == [b""]:
        number = "no lines" if lines == [b""] else f"{len(lines)} lines"
        rule = f"has {number}; a request has 1 to {MOST_VALUES} values, a line each: divide more among several requests"
        raise ConfigError(source, [("", rule)])
    return [
        _value(line.removesuffix(b"\r"), f"{source}: line {number}", hexadecimal=hexadecimal, integers=integers)
        for number, line in enumerate(lines, 1)
    ]


def _value(line: bytes, place: str, *, hexadecimal: bool, integers: bool) -> bytes:
    if not line:
        raise ConfigError(place, [("", "is empty; remove it: no record is erased for having no value")])
    if hexadecimal:
        if not _HEX.fullmatch(line):
            raise ConfigError(place, [("", "is not bytes in hexadecimal digits, as --hex says")])
        return bytes.fromhex(line.decode())
    if integers and not _INTEGER.fullmatch(line):
        raise ConfigError(place, [("", "is not a whole number without leading zeros, as the values of the column are")])
    try:
        line.decode()
    except UnicodeDecodeError:
        raise ConfigError(place, [("", "is not UTF-8; write bytes in hexadecimal digits, with --hex")]) from None
    return line
