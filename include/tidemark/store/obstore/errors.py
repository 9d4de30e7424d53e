"""Translates obstore's errors to Tidemark's, which distinguish failed from unknown outcomes."""

from __future__ import annotations

import re
from typing import Final

from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotModifiedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from tidemark.errors import (
    AccessDenied,
    BucketMissing,
    NotFound,
    PreconditionFailed,
    SlowDown,
    StoreError,
    UnknownOutcome,
)

FAILURES: Final = (BaseError, FileNotFoundError, NotImplementedError, ValueError)
"""obstore's errors: a missing object is a FileNotFoundError, an invalid key a ValueError."""

_STATUS: Final = re.compile(r"status code: (\d{3})|\(code: (\d{3})\)")
"""A reply's status, which only obstore's message has; the second form is for a reply within Azure's batch."""

_NO_BUCKET: Final = ("NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist")
_SLOW_DOWN: Final = {429, 503}
_DENIED: Final = {401, 403}


def translated(name: str, error: Exception) -> StoreError:
    """The error of ours that states the known outcome."""
    reason = _reason(error)
    match = _STATUS.search(reason)
    status = int(match[1] or match[2]) if match else None
    if status == 404 and any(words in reason for words in _NO_BUCKET):
        return BucketMissing(name)
    if isinstance(error, FileNotFoundError):
        return NotFound(name, "there is no such object")
    if isinstance(error, (AlreadyExistsError, PreconditionError, NotModifiedError)):
        return PreconditionFailed(name, reason)
    if "token request" in reason:
        return _without_credentials(name, reason, status)
    if isinstance(error, (PermissionDeniedError, UnauthenticatedError)) or status in _DENIED:
        return AccessDenied(name, f"{reason}; check the credentials and the role that they have")
    if status in _SLOW_DOWN:
        return SlowDown(name, reason)
    if isinstance(error, (NotImplementedError, ValueError)) or (status is not None and status < 500 and status != 408):
        return StoreError(name, reason)
    return UnknownOutcome(name, reason if status else f"no answer that proves anything: {reason}")


def _without_credentials(name: str, reason: str, status: int | None) -> StoreError:
    """The error of a server that issues tokens and refused, or did not answer; the store was not asked yet."""
    rule = f"{reason}; give credentials as docs/storage.md says"
    return UnknownOutcome(name, rule) if status is None or status >= 500 else AccessDenied(name, rule)


def _reason(error: Exception) -> str:
    """The message without the structure that obstore prints after it."""
    return " ".join(str(error).partition("Debug source:")[0].split())
