"""From a URL and a few options to a store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tidemark.config import imported
from tidemark.errors import FormatError
from tidemark.retry import Retry
from tidemark.store.base import Store
from tidemark.store.local import LocalStore
from tidemark.store.options import StoreOptions
from tidemark.store.retrying import repeating
from tidemark.store.url import split_store_url

if TYPE_CHECKING:
    from tidemark.store.s3_timeouts import Traffic


def open_store(url: str, options: StoreOptions | None = None, traffic: Traffic | None = None) -> Store:
    """The store of ``s3://bucket`` or ``file:///directory``; ``traffic`` is asked before anything is sent to S3.

    A URL of another scheme is opened by the class that ``options.backend`` names. Reads are repeated by
    :mod:`tidemark.retry`; those of a directory are not, as nothing that passes can happen to them.

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
        return repeating(other, Retry())
    from tidemark.store.s3 import S3Store
    from tidemark.store.s3_clients import clients

    chosen = options or StoreOptions()
    found = clients(chosen) if traffic is None else clients(chosen, traffic)
    return repeating(S3Store(root.removeprefix("s3://"), found, chosen), Retry())
