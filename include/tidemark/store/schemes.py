"""URLs that name a store, and how it is opened: schemes, the bucket or directory and the prefix, and options.

docs/code.md, "How to add a store", names the other places of a new scheme.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from tidemark.config import imported
from tidemark.errors import FormatError
from tidemark.store.base import Store, Traffic
from tidemark.store.local import LocalStore
from tidemark.store.obstore.factory import CLOUDS
from tidemark.store.options import LIMITS, RequestLimits, StoreOptions
from tidemark.store.retrying import Retry, repeating

_OF_S3: Final = frozenset({"region", "sse_kms_key_id", "storage_class", "tags", "expected_bucket_owner"})

_GCS_LABEL: Final = r"[a-z0-9](?:[a-z0-9_-]{0,61}[a-z0-9])?"
"""A part between the dots of a bucket's name on Google Cloud Storage."""

_NOBODY: Final = Traffic()
_UNSET: Final = StoreOptions()

_OTHER_URL = re.compile(r"([a-z][a-z0-9+.-]*)://(?:([^\s/?#]+)(/[^\s?#]*)?|/[^\s?#]+)")


class Scheme(NamedTuple):
    """``url`` as messages show it; the rule for the bucket's name, None if there is a path instead.

    ``credentials`` is the prefix of the environment's variables that hold its credentials, empty without any: jobs get
    these, and no log shows their values. ``unused`` names the options that such a store does not know: setting one is
    an error, as it would have no effect.
    """

    url: str
    bucket: re.Pattern[str] | None
    credentials: str = ""
    unused: frozenset[str] = frozenset()


SCHEMES: Final = {
    "s3": Scheme("s3://<bucket>[/<prefix>]", re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"), "AWS_"),
    # https://cloud.google.com/storage/docs/buckets#naming
    "gs": Scheme(
        "gs://<bucket>[/<prefix>]",
        re.compile(rf"(?=.{{3,222}}$)(?!goog)(?!.*google)(?!\d+(?:\.\d+){{3}}$){_GCS_LABEL}(?:\.{_GCS_LABEL})*"),
        "GOOGLE_",
        _OF_S3 | {"path_style"},
    ),
    # https://learn.microsoft.com/rest/api/storageservices/naming-and-referencing-containers--blobs--and-metadata
    "az": Scheme("az://<container>[/<prefix>]", re.compile(r"(?=.{3,63}$)[a-z0-9]+(?:-[a-z0-9]+)*"), "AZURE_", _OF_S3),
    "file": Scheme("file:///<directory>", None),
}

DIRECTORY: Final = "file"
"""The scheme of a store that is a directory, which may be another one on another machine."""

CREDENTIALS: Final = tuple(scheme.credentials for scheme in SCHEMES.values() if scheme.credentials)
"""Prefixes of all variables with credentials of stores."""


def scheme_of(url: str) -> str:
    """The part before ``://``; empty if there is none."""
    scheme, separator, _ = url.partition("://")
    return scheme if separator else ""


def check_options(url: str, options: StoreOptions) -> None:
    """Check that the store of ``url`` knows each option that is set.

    Raises:
        FormatError: it names the options that the store does not know.
    """
    scheme = scheme_of(url)
    if scheme not in SCHEMES:
        return  # for a class of ``store.backend``, which decides by itself
    wrong = sorted(name for name in SCHEMES[scheme].unused if getattr(options, name) != getattr(_UNSET, name))
    if wrong:
        named = ", ".join(f"store.{name}" for name in wrong)
        raise FormatError(url, f"stores at {scheme}:// do not know {named}; leave it out, see docs/storage.md")


def split_store_url(url: str, *, any_scheme: bool = False) -> tuple[str, str]:
    """``s3://bucket/some/prefix`` → (``s3://bucket``, ``some/prefix``); ``file:///dir`` → (``file:///dir``, ````).

    With ``any_scheme`` also ``<scheme>://<name>/some/prefix`` and ``<scheme>:///path``, in the same way, for stores of
    other kinds (``store.backend``).

    Raises:
        FormatError: no URL of :data:`tidemark.store.schemes.SCHEMES`, nor another that is allowed.
    """
    known = SCHEMES.get(scheme_of(url))
    if known is None:
        if any_scheme and (match := _OTHER_URL.fullmatch(url)):
            if match[2] is None:
                return url.rstrip("/"), ""
            return f"{match[1]}://{match[2]}", (match[3] or "").strip("/")
    elif known.bucket is None:
        if url.startswith("file:///") and len(url) > len("file:///"):
            return url.rstrip("/"), ""
    else:
        root, _, prefix = url.removeprefix(f"{scheme_of(url)}://").partition("/")
        if known.bucket.fullmatch(root):
            return f"{scheme_of(url)}://{root}", prefix.strip("/")
    forms = [scheme.url for scheme in SCHEMES.values()]
    rule = f"must be {', '.join(forms[:-1])} or {forms[-1]}"
    raise FormatError(url, f"{rule}; others need store.backend")


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
"""Functions that open the stores of :data:`SCHEMES`, from the URL without a prefix."""


def open_store(
    url: str,
    options: StoreOptions | None = None,
    traffic: Traffic | None = None,
    *,
    limits: RequestLimits = LIMITS,
) -> Store:
    """The store at ``s3://bucket``, ``gs://bucket``, ``az://container`` or ``file:///directory``.

    ``traffic`` is asked before anything is sent. A URL of another scheme is opened by the class that
    ``options.backend`` names. Reads are repeated according to :mod:`tidemark.store.retrying`, except those of a
    directory, which has no transient failures.

    Raises:
        FormatError: none of these, or with a path below the bucket (a prefix is given apart), or an option is set that
            a store of this scheme does not know.
        ConfigError: there is no such class; or a package of the scheme is not installed, or its environment is not
            complete.
    """
    chosen = options or _UNSET
    root, prefix = split_store_url(url, any_scheme=chosen.backend is not None)
    if prefix:
        raise FormatError(url, "must name only a bucket; give the prefix separately")
    check_options(root, chosen)
    opened = OPENED_BY.get(scheme_of(root))
    if opened is not None:
        return opened(root, chosen, traffic or _NOBODY, limits)
    other: Store = imported(str(chosen.backend))(root, chosen)
    return repeating(other, Retry())
