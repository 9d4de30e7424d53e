"""Requests for erasure, as tests make them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from tidemark.erasure.secret import Secret
from tidemark.formats.raw.erasure import ErasureRequest, SearchedTopic, WantedValue
from tidemark.timestamps import utc_now

SECRET: Final = Secret("a secret of the tests, long enough")


def asked(values: Iterable[bytes], secret: Secret = SECRET, number: int = 1, **others: Any) -> ErasureRequest:
    """Request ``number`` to erase ``values`` from ``orders``; ``others`` are fields of the searched topic."""
    wanted = tuple(WantedValue(digest=secret.digest(value), probe=f"{secret.probe(value):08x}") for value in values)
    return ErasureRequest(
        id=f"{number:016x}",
        cluster="east",
        topics=(SearchedTopic(topic="orders", **others),),
        values=wanted,
        secret=secret.fingerprint,
        through={"orders": ()},
        reason="DSR-1182",
        by="ada",
        written_as="key ADA by ada@host",
        at=utc_now(),
    )
