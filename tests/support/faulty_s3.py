"""A fixture: the S3 server behind a proxy that plants faults, for all clients that a test makes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.proxy import FaultProxy
from tests.support.s3 import S3Server
from tidemark.store.s3.clients import forget_clients


@pytest.fixture
def proxy(
    s3_server: S3Server, rng: random.Random, monkeypatch: pytest.MonkeyPatch, quick_retries: None
) -> Iterator[FaultProxy]:
    """A proxy before the server, which all clients of this test use, with short pauses between their tries."""
    with proxied(s3_server, rng, monkeypatch) as found:
        yield found


@contextmanager
def proxied(s3_server: S3Server, rng: random.Random, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """A proxy before the server, which all clients in the block use."""
    with FaultProxy(s3_server.endpoint, rng) as found:
        for name, value in s3_server.env().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_ENDPOINT_URL", found.endpoint)
        forget_clients()
        yield found
    forget_clients()
