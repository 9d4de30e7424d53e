"""URLs of stores: the bucket or directory, and the prefix in it."""

from __future__ import annotations

import re

from tidemark.errors import FormatError

_OTHER_URL = re.compile(r"(?!s3:|file:)([a-z][a-z0-9+.-]*)://(?:([^\s/?#]+)(/[^\s?#]*)?|/[^\s?#]+)")


def split_store_url(url: str, *, any_scheme: bool = False) -> tuple[str, str]:
    """``s3://bucket/some/prefix`` → (``s3://bucket``, ``some/prefix``); ``file:///dir`` → (``file:///dir``, ````).

    With ``any_scheme`` also ``<scheme>://<name>/some/prefix`` and ``<scheme>:///path``, in the same way, for stores of
    other kinds (``store.backend``).

    Raises:
        FormatError: neither an ``s3://`` nor a ``file:///`` URL, nor another that is allowed.
    """
    if url.startswith("s3://"):
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        if re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", bucket):
            return f"s3://{bucket}", prefix.strip("/")
    elif url.startswith("file:///") and len(url) > len("file:///"):
        return url.rstrip("/"), ""
    elif any_scheme and (found := _OTHER_URL.fullmatch(url)):
        if found[2] is None:
            return url.rstrip("/"), ""
        return f"{found[1]}://{found[2]}", (found[3] or "").strip("/")
    raise FormatError(url, "must be s3://<bucket>[/<prefix>] or file:///<directory>; others need store.backend")
