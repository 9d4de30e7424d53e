"""Every test of the remote tier's readers runs over a local directory and over a real S3 server."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tests.support.s3 import S3Server
from tests.tidemark.remote.world import RemoteStore
from tidemark.store import StoreOptions


@pytest.fixture
def local_store(tmp_path: Path) -> RemoteStore:
    """An empty directory."""
    return RemoteStore(f"file://{tmp_path}/raw")


@pytest.fixture
def s3_store(s3: S3Server) -> RemoteStore:
    """An empty prefix of a bucket: the server has room for few buckets."""
    options = StoreOptions(endpoint_url=s3.endpoint, region="us-east-1", path_style=True)
    return RemoteStore("s3://raw", uuid.uuid4().hex, options)


@pytest.fixture(params=["local", pytest.param("s3", marks=[pytest.mark.drawn(0.25), pytest.mark.s3])])
def remote_store(request: pytest.FixtureRequest) -> RemoteStore:
    """An empty store of either kind."""
    found: RemoteStore = request.getfixturevalue(f"{request.param}_store")
    return found
