"""Bodies are not hashed twice where the wire is private, and are verified by the store all the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from crc32c import crc32c

from tests.support.s3 import S3Server
from tidemark.errors import NotFound, StoreError
from tidemark.store import StoreOptions, open_store
from tidemark.store.s3.clients import clients


@pytest.mark.parametrize(
    ("url", "signed"),
    [
        (None, False),
        ("https://s3.example", False),
        ("http://127.0.0.1:8333", False),
        ("http://localhost:8333", False),
        ("http://minio.internal:9000", True),
    ],
)
def test_payload_is_signed_on_an_open_wire_only(url: str | None, signed: bool) -> None:
    made = clients(StoreOptions(endpoint_url=url, region="us-east-1"))
    chosen = made.write.meta.config.s3  # type: ignore[attr-defined]
    assert chosen["payload_signing_enabled"] is signed


@pytest.mark.essential
def test_unsigned_bytes_are_verified(s3: S3Server, tmp_path: Path) -> None:
    store = open_store("s3://raw", StoreOptions(endpoint_url=s3.endpoint, path_style=True))
    path = tmp_path / "segment"
    path.write_bytes(bytes(100_000))
    with path.open("rb") as file, pytest.raises(StoreError):
        store.put("signing/wrong", file, size=100_000, crc32c=1)
    with pytest.raises(NotFound):
        store.head("signing/wrong")
    with path.open("rb") as file:
        store.put("signing/right", file, size=100_000, crc32c=crc32c(bytes(100_000)))
    assert store.head("signing/right").crc32c == crc32c(bytes(100_000))
