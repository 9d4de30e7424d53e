"""CRC32C in S3's form: the base64 of its four bytes, most significant first."""

from __future__ import annotations

import base64
from typing import Any


def encoded(crc32c: int) -> str:
    """A checksum in S3's form."""
    return base64.b64encode(crc32c.to_bytes(4, "big")).decode()


def decoded(reply: Any) -> int | None:
    """The checksum of all of an object's bytes, if the reply has it; a checksum of parts ends in ``-<parts>``."""
    text = reply.get("ChecksumCRC32C")
    return int.from_bytes(base64.b64decode(text), "big") if text and "-" not in text else None
