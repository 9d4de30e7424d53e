"""Translates the answers of S3, and missing answers, to known or unknown outcomes."""

from __future__ import annotations

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    ReadTimeoutError,
    SSLError,
)
from urllib3.exceptions import HTTPError

from tidemark.errors import (
    AccessDenied,
    BucketMissing,
    NotFound,
    PreconditionFailed,
    Refused,
    SlowDown,
    StoreError,
    UnknownOutcome,
)
from tidemark.store.s3.timeouts import overrun

FAILURES = (ClientError, BotoCoreError, HTTPError)
"""A client's errors. botocore lets urllib3's errors through if the body of an error's reply does not arrive."""

_NOT_FOUND = {"NoSuchKey", "NoSuchVersion", "404", "NotFound"}
_CONDITION = {"PreconditionFailed", "ConditionalRequestConflict", "412", "409", "304"}
_SLOW_DOWN = {"SlowDown", "RequestLimitExceeded", "TooManyRequests", "TooManyRequestsException", "Throttling", "429"}
_UNKNOWN = {"RequestTimeout", "IncompleteBody"}
_CREDENTIALS = (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError, ProfileNotFound)
_TOKENS = {"ExpiredToken", "InvalidToken", "TokenRefreshRequired", "InvalidAccessKeyId", "AccessDenied"}


def translated(name: str, error: ClientError | BotoCoreError | HTTPError) -> StoreError:
    """The error of ours that states the known outcome."""
    if isinstance(error, ClientError):
        return _answered(name, error)
    if isinstance(error, _CREDENTIALS):
        rule = (
            "give credentials as AWS's own tools expect them, each machine of Spark's workers its own (docs/spark.md)"
        )
        return AccessDenied(name, f"{error}; {rule}")
    limit = overrun(error)
    if limit is None and isinstance(error, (ConnectTimeoutError, ReadTimeoutError)):  # the latter in TLS's handshake
        return UnknownOutcome(name, "no answer: no connection in time (store.connect_timeout)")
    if isinstance(error, SSLError) and "CERTIFICATE_VERIFY_FAILED" in str(error):  # nothing was sent
        rule = "have AWS_CA_BUNDLE name a file with the authority of the store's certificate, and start this again"
        return Refused(name, f"{error}; {rule}")
    if isinstance(error, EndpointConnectionError):
        return UnknownOutcome(name, f"no answer: {error}; does the store run, and is store.endpoint_url right?")
    return UnknownOutcome(name, f"no answer: {limit or error}")


def _answered(name: str, error: ClientError) -> StoreError:
    code = error.response.get("Error", {}).get("Code", "")
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    reason = f"{code} {error.response.get('Error', {}).get('Message', '')}".strip()
    if code == "NoSuchBucket":
        return BucketMissing(name)
    if code in _NOT_FOUND:
        return NotFound(name, "there is no such object")
    if code in _CONDITION or status == 412:
        return PreconditionFailed(name, reason)
    if code in _SLOW_DOWN or status == 429:
        return SlowDown(name, reason)
    if code == "RequestTimeTooSkewed":
        rule = "this host's clock is too far from the store's; set it (NTP, chrony): the credentials are not the reason"
        return Refused(name, f"{reason}; {rule}")
    if code in _TOKENS or status in {401, 403}:
        return AccessDenied(name, f"{reason}; check the credentials and the policy of this role")
    if status >= 500 or code in _UNKNOWN:
        return UnknownOutcome(name, reason)
    return StoreError(name, reason)
