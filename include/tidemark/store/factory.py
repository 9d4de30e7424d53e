"""Opens the store of a URL, with a few options."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from tidemark.config import imported
from tidemark.errors import FormatError
from tidemark.retry import Retry
from tidemark.store.base import Store, Traffic
from tidemark.store.local import LocalStore
from tidemark.store.obstore.factory import CLOUDS
from tidemark.store.options import LIMITS, RequestLimits, StoreOptions
from tidemark.store.retrying import repeating
from tidemark.store.schemes import check_options, scheme_of, split_store_url

_NOBODY: Final = Traffic()


def _directory(url: str, _options: StoreOptions, _traffic: Traffic, _limits: RequestLimits) -> Store:
    return LocalStore(Path(url.removeprefix("file://")))


def _s3(url: str, options: StoreOptions, traffic: Traffic, limits: RequestLimits) -> Store:
    from tidemark.store.s3.clients import clients
    from tidemark.store.s3.store import S3Store

    bucket = url.removeprefix("s3://")
    return repeating(S3Store(bucket, clients(options, traffic, limits), options, limits), Retry())


def _object_store(url: str, options: StoreOptions, traffic: Traffic, limits: RequestLimits) -> Store:
    from tidemark.store.obstore.factory import open_object_store

    return repeating(open_object_store(url, options, traffic, limits), Retry())


OPENED_BY: Final[dict[str, Callable[[str, StoreOptions, Traffic, RequestLimits], Store]]] = {
    "s3": _s3,
    "file": _directory,
    **dict.fromkeys(CLOUDS, _object_store),
}
"""Functions that open the stores of :data:`tidemark.store.schemes.SCHEMES`, from the URL without a prefix."""


def open_store(
    url: str,
    options: StoreOptions | None = None,
    traffic: Traffic | None = None,
    *,
    limits: RequestLimits = LIMITS,
) -> Store:
    """The store at ``s3://bucket``, ``gs://bucket``, ``az://container`` or ``file:///directory``.

    ``traffic`` is asked before anything is sent. A URL of another scheme is opened by the class that
    ``options.backend`` names. Reads are repeated according to :mod:`tidemark.retry`, except those of a directory, which
    has no transient failures.

    Raises:
        FormatError: none of these, or with a path below the bucket (a prefix is given apart), or an option is set that
            a store of this scheme does not know.
        ConfigError: there is no such class; or a package of the scheme is not installed, or its environment is not
            complete.
    """
    chosen = options or StoreOptions()
    root, prefix = split_store_url(url, any_scheme=chosen.backend is not None)
    if prefix:
        raise FormatError(url, "must name only a bucket; give the prefix separately")
    check_options(root, chosen)
    opened = OPENED_BY.get(scheme_of(root))
    if opened is not None:
        return opened(root, chosen, traffic or _NOBODY, limits)
    other: Store = imported(str(chosen.backend))(root, chosen)
    return repeating(other, Retry())
