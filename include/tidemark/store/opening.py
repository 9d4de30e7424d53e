"""From a URL and a few options to a store."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from tidemark.errors import FormatError
from tidemark.layout import split_store_url
from tidemark.store.base import Store
from tidemark.store.local import LocalStore


class StoreOptions(BaseModel):
    """How to reach S3. Credentials are never here: they come from AWS's default chain (role, environment, profile)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    endpoint_url: str | None = Field(default=None, pattern=r"^https?://[^\s/@]+$")
    region: str | None = None
    path_style: bool = False
    connections: int = Field(default=16, ge=1, le=1000)


def open_store(url: str, options: StoreOptions | None = None) -> Store:
    """The store of ``s3://bucket`` or ``file:///directory``.

    Raises:
        FormatError: neither, or with a path below the bucket (a prefix is given apart).
    """
    root, prefix = split_store_url(url)
    if prefix:
        raise FormatError(url, "must name a bucket alone; the prefix is given apart")
    if root.startswith("file://"):
        return LocalStore(Path(root.removeprefix("file://")))
    from tidemark.store.s3 import S3Store, clients

    chosen = options or StoreOptions()
    write, read = clients(
        chosen.endpoint_url, chosen.region, path_style=chosen.path_style, connections=chosen.connections
    )
    return S3Store(root.removeprefix("s3://"), write=write, read=read)
