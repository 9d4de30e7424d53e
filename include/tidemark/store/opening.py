"""From a URL and a few options to a store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tidemark.config import imported
from tidemark.errors import FormatError
from tidemark.layout import split_store_url
from tidemark.store.base import Store
from tidemark.store.local import LocalStore
from tidemark.store.options import StoreOptions

if TYPE_CHECKING:
    from tidemark.store.limits import Traffic


def open_store(url: str, options: StoreOptions | None = None, traffic: Traffic | None = None) -> Store:
    """The store of ``s3://bucket`` or ``file:///directory``; ``traffic`` is asked before anything is sent to S3.

    A URL of another scheme is opened by the class that ``options.backend`` names.

    Raises:
        FormatError: none of these, or with a path below the bucket (a prefix is given apart), or no such class.
    """
    backend = options.backend if options else None
    root, prefix = split_store_url(url, any_scheme=backend is not None)
    if prefix:
        raise FormatError(url, "must name a bucket alone; the prefix is given apart")
    if root.startswith("file://"):
        return LocalStore(Path(root.removeprefix("file://")))
    if backend is not None and not root.startswith("s3://"):
        other: Store = imported(backend)(root, options)
        return other
    from tidemark.store.clients import clients
    from tidemark.store.s3 import S3Store

    chosen = options or StoreOptions()
    found = clients(chosen) if traffic is None else clients(chosen, traffic)
    return S3Store(root.removeprefix("s3://"), found, chosen)
