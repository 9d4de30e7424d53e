"""The secrets of erasure, from the environment: without them nobody can test a guess against a request.

A value has a digest, which decides, and a *probe*: 32 bits of SipHash-2-4, cheap enough for each row of a table. Both
are under keys from the secret. An unkeyed hash, or a fast one that is no pseudo-random function, would tell a value to
whoever can guess it.

Source: Aumasson and Bernstein, "SipHash: a fast short-input PRF".
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from tidemark.errors import ConfigError

VARIABLE: Final = "TIDEMARK_ERASURE_SECRET"
LEAST_CHARACTERS: Final = 32

INITIAL: Final = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
"""SipHash's initial state."""

_MASK: Final = (1 << 64) - 1


@dataclass(frozen=True)
class Secret:
    """A secret; its text is in no message."""

    text: str = field(repr=False)

    @cached_property
    def fingerprint(self) -> str:
        """The name of the secret in requests: 16 hex digits."""
        return self._mac(b"tidemark-erasure-fingerprint").hex()[:16]

    @cached_property
    def probe_key(self) -> tuple[int, int]:
        """The key of the probes, as two numbers of 64 bits."""
        mac = self._mac(b"probe")
        return int.from_bytes(mac[:8], "little"), int.from_bytes(mac[8:16], "little")

    def digest(self, value: bytes) -> str:
        """The digest of a canonical value: 32 hex digits."""
        return self._mac(b"value\0" + value).hex()[:32]

    def probe(self, value: bytes) -> int:
        """The probe of a canonical value: the lower half of its SipHash-2-4."""
        return siphash(self.probe_key, value) & 0xFFFFFFFF

    def _mac(self, message: bytes) -> bytes:
        return hmac.digest(self.text.encode(), message, "sha256")


def secrets(environment: Mapping[str, str] = os.environ) -> dict[str, Secret]:
    """The secrets of the environment by fingerprint; new requests use the first.

    Raises:
        ConfigError: there is none, or one is too short.
    """
    found = [Secret(text) for text in environment.get(VARIABLE, "").split()]
    if not found:
        raise ConfigError(VARIABLE, [("", f"is not set: it needs a secret of at least {LEAST_CHARACTERS} characters")])
    for number, secret in enumerate(found, 1):
        if len(secret.text) < LEAST_CHARACTERS:
            rule = f"secret {number} of {len(found)} is too short: it needs at least {LEAST_CHARACTERS} characters"
            raise ConfigError(VARIABLE, [("", rule)])
    return {secret.fingerprint: secret for secret in found}


def siphash(key: tuple[int, int], value: bytes) -> int:
    """SipHash-2-4 of ``value``."""
    a, b, c, d = (state ^ part for state, part in zip(INITIAL, key * 2, strict=True))
    whole = len(value) & ~7
    last = int.from_bytes(value[whole:], "little") | (len(value) & 0xFF) << 56
    for word in (*(int.from_bytes(value[at : at + 8], "little") for at in range(0, whole, 8)), last):
        a, b, c, d = _round(*_round(a, b, c, d ^ word))
        a ^= word
    c ^= 0xFF
    for _ in range(4):
        a, b, c, d = _round(a, b, c, d)
    return a ^ b ^ c ^ d


def _round(a: int, b: int, c: int, d: int) -> tuple[int, int, int, int]:
    a, c = (a + b) & _MASK, (c + d) & _MASK
    b, d = _rotate(b, 13) ^ a, _rotate(d, 16) ^ c
    a = _rotate(a, 32)
    c, a = (c + b) & _MASK, (a + d) & _MASK
    b, d = _rotate(b, 17) ^ c, _rotate(d, 21) ^ a
    return a, b, _rotate(c, 32), d


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _MASK
