"""The base of every JSON object in the store: versioned, immutable, canonical bytes, errors that name the key.

Readers ignore fields that they do not know, so that a newer agent and an older job can share a store; what
would be misread by an older reader raises ``format`` instead. Times are UTC, offsets are integers, and
``[start, end)`` is half-open.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from tidemark.errors import FormatError


class Part(BaseModel):
    """A piece of a stored object: immutable, tolerant of fields it does not know."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)


class StoredObject(Part):
    """One JSON object in the store."""

    format: Literal[1] = 1

    def to_bytes(self) -> bytes:
        """Canonical JSON (sorted keys, no spaces, UTF-8): the same object gives the same bytes."""
        return canonical(self.model_dump(mode="json", by_alias=True))

    @classmethod
    def from_bytes(cls, body: bytes, key: str) -> Self:
        """Parse ``body``.

        Raises:
            FormatError: naming ``key``, the field and the rule that it breaks.
        """
        try:
            return cls.model_validate_json(body)
        except ValidationError as error:
            raise FormatError(key, describe(error)) from error


def canonical(value: object) -> bytes:
    """The canonical JSON of plain values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def describe(error: ValidationError) -> str:
    """Every problem of ``error`` as ``field: rule``, joined by ``; ``."""
    return "; ".join(
        f"{'.'.join(str(part) for part in item['loc']) or 'object'}: {item['msg']}" for item in error.errors()
    )


def utc_now() -> datetime:
    """The time, aware, in UTC, to the millisecond."""
    now = datetime.now(UTC)
    return now.replace(microsecond=now.microsecond // 1000 * 1000)


def stamp(at: datetime) -> str:
    """A UTC time as it stands in keys, to the millisecond: ``20261120T120000123Z``. Later times sort later."""
    return f"{at:%Y%m%dT%H%M%S}{at.microsecond // 1000:03d}Z"
