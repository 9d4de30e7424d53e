"""The plugin's envelope encryption: a key of each copy under RSA-OAEP, and pieces under AES-256 in GCM.

A piece is an IV of 12 bytes, the ciphertext, and a tag of 16 bytes. A copy has one key and one AAD for all of its
chunks and indexes. Neither has a chunk's place in it, so swapped pieces pass: sizes and the CRC32C of batches tell.

The data key is wrapped by OAEP with SHA3-512 for hash and mask, and an empty label. The package ``cryptography``
refuses SHA-3 there, so the padding is removed here, after plain RSA. That takes a time that depends on the bytes,
which nobody can measure: no stranger can ask for it. Source: RFC 8017, 7.1.2 and B.2.1.
"""

from __future__ import annotations

from binascii import Error as NotBase64
from binascii import a2b_base64
from collections.abc import Callable, Mapping
from hashlib import sha3_512
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidemark.errors import ConfigError, FormatError
from tidemark.kafka_tier.manifest import SEALED_BYTES, Encryption

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateNumbers

_HASH: Final = 64
"""Bytes of SHA3-512."""

_IV: Final = 12
_KEY: Final = 32


class KeyNotGiven(FormatError):
    """A copy is encrypted under a key pair of which no file was given."""


def decryption(encryption: Encryption, pairs: Mapping[str, RSAPrivateNumbers], key: str) -> Callable[[bytes], bytes]:
    """The function that decrypts a piece of the copy whose manifest lies under ``key``.

    It raises ValueError for a piece that is not what was encrypted. ``pairs`` are the private keys by the ids of the
    plugin's key pairs.

    Raises:
        KeyNotGiven: the copy's key pair is not among ``pairs``.
        FormatError: the key was wrapped by another pair, or is damaged.
    """
    pair = pairs.get(encryption.key_pair)
    if pair is None:
        rule = f"is encrypted under the key pair {encryption.key_pair!r}, whose file was not given"
        raise KeyNotGiven(key, f"{rule}: --key-file {encryption.key_pair}=PATH")
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        wrapped = a2b_base64(encryption.data_key.partition(":")[2], strict_mode=True)
        aad = a2b_base64(encryption.aad, strict_mode=True)
        aes = AESGCM(_unwrapped(wrapped, pair))
    except NotBase64 as error:
        raise FormatError(key, "encryption: dataKey and aad must be base64") from error
    except ValueError as error:
        rule = f"dataKey {error}: damaged, or the file of the key pair {encryption.key_pair!r} is another's"
        raise FormatError(key, f"encryption: {rule}") from error

    def decrypted(piece: bytes) -> bytes:
        if len(piece) < SEALED_BYTES:
            raise ValueError(f"has {len(piece)} bytes, too few for an encrypted piece")
        try:
            return aes.decrypt(piece[:_IV], piece[_IV:], aad)
        except InvalidTag as error:
            raise ValueError("is not what was encrypted: its tag does not fit") from error

    return decrypted


def private_key(path: Path) -> RSAPrivateNumbers:
    """The private key in a PEM file (PKCS#8). Raises ConfigError, naming the file, if it is no private RSA key."""
    try:
        from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError as error:
        rule = "needs cryptography, which is not installed: pip install 'tidemark-kafka[kafka-tier]'"
        raise ConfigError(str(path), [("", rule)]) from error
    try:
        private = load_pem_private_key(path.read_bytes(), None)
    except (ValueError, TypeError, OSError) as error:
        raise ConfigError(str(path), [("", f"is no private key in PEM without a password: {error}")]) from error
    if not isinstance(private, RSAPrivateKey):
        raise ConfigError(str(path), [("", "is a private key of another kind than RSA")])
    return private.private_numbers()


def _unwrapped(wrapped: bytes, pair: RSAPrivateNumbers) -> bytes:
    modulus = pair.public_numbers.n
    size = (modulus.bit_length() + 7) // 8
    number = int.from_bytes(wrapped, "big")
    if len(wrapped) != size or number >= modulus:
        raise ValueError("has another length than the key pair")
    # By the remainders (RFC 8017, 5.1.2), four times as fast as by the private exponent.
    left, right = pow(number, pair.dmp1, pair.p), pow(number, pair.dmq1, pair.q)
    block = (right + pair.q * ((left - right) * pair.iqmp % pair.p)).to_bytes(size, "big")
    seed = _xor(block[1 : 1 + _HASH], _mask(block[1 + _HASH :], _HASH))
    content = _xor(block[1 + _HASH :], _mask(seed, size - 1 - _HASH))
    padding, one, key = content[_HASH:].partition(b"\x01")
    if block[0] or content[:_HASH] != sha3_512(b"").digest() or any(padding) or not one or len(key) != _KEY:
        raise ValueError("is not wrapped for the key pair")
    return key


def _mask(seed: bytes, size: int) -> bytes:
    blocks = (sha3_512(seed + number.to_bytes(4, "big")).digest() for number in range(-(-size // _HASH)))
    return b"".join(blocks)[:size]


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))
