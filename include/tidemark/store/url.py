"""URLs of stores: the bucket or directory, and the prefix in it."""

from __future__ import annotations

import re

from tidemark.errors import FormatError
from tidemark.store.schemes import SCHEMES, scheme_of

_OTHER_URL = re.compile(r"([a-z][a-z0-9+.-]*)://(?:([^\s/?#]+)(/[^\s?#]*)?|/[^\s?#]+)")


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
