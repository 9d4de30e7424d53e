"""obstore's clients of Google Cloud Storage and Azure Blob Storage, limited in time; none of them tries again.

obstore is imported here: it is the extra ``tidemark-kafka[object-store]``, and only ``gs://`` and ``az://`` need it.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Callable
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final
from urllib.error import HTTPError

from tidemark.errors import ConfigError, StoreError, UnknownOutcome
from tidemark.store.obstore.factory import azure_account
from tidemark.store.options import LIMITS, RequestLimits, StoreOptions

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig
    from obstore.store import ObjectStore as Client

_SMALL: Final = 1 << 20
"""The most bytes of requests that share one limit in time."""

_ONE_TRY: Final[RetryConfig] = {"max_retries": 0, "retry_timeout": timedelta(minutes=3)}


class ObstoreClients:
    """Clients by the time that their requests may take. Thread-safe; made again when credentials are refused.

    obstore limits a client's requests alike, so there is one for each size of request: up to 1 MiB, up to a part,
    and each size above. Writes get no limit for each read, as the time to send the body would count.
    """

    def __init__(
        self, connect: Callable[[ClientConfig], Client], options: StoreOptions, limits: RequestLimits = LIMITS
    ) -> None:
        """``connect`` makes a client with given limits."""
        self._request_limits = limits
        self._connect = connect
        self._options = options
        self._made: dict[tuple[int, bool], Client] = {}

    def read(self) -> Client:
        """The client for requests with a reply of at most a part."""
        return self._client(self._options.part_size, progress=True)

    def write(self, size: int = 0) -> Client:
        """The client for requests that send ``size`` bytes."""
        part = self._options.part_size
        return self._client(_SMALL if size <= _SMALL else max(part, size), progress=False)

    def renew(self) -> None:
        """Look for credentials again from the next request on."""
        self._made = {}

    def _client(self, size: int, *, progress: bool) -> Client:
        made = self._made
        client = made.get((size, progress))
        if client is None:
            client = self._connect(self._limits(size, progress=progress))
            if size <= self._options.part_size:
                made[size, progress] = client
        return client

    def _limits(self, size: int, *, progress: bool) -> ClientConfig:
        request = self._request_limits
        limits: ClientConfig = {
            "connect_timeout": request.connect_timeout,
            "timeout": self._options.deadline + timedelta(seconds=size / request.min_rate),
            "pool_max_idle_per_host": str(request.connections),
        }
        if progress:
            limits["read_timeout"] = request.no_progress
        return limits


def google(bucket: str, base: str, limits: ClientConfig) -> Client:
    """A client of a bucket of Google Cloud Storage. Raises ConfigError if the environment is not complete."""
    from obstore.exceptions import BaseError
    from obstore.store import GCSStore

    try:
        return GCSStore(bucket, base_url=base, client_options=_allowing_http(base, limits), retry_config=_ONE_TRY)
    except (BaseError, OSError, ValueError) as error:
        raise _no_client("GOOGLE_*", error) from error


def azure(container: str, base: str, limits: ClientConfig) -> Client:
    """A client of a container of Azure. Raises ConfigError if the environment is not complete."""
    from obstore.exceptions import BaseError
    from obstore.store import AzureStore

    try:
        return AzureStore(
            container,
            account_name=azure_account(),
            endpoint=base,
            client_options=_allowing_http(base, limits),
            retry_config=_ONE_TRY,
        )
    except (BaseError, OSError, ValueError) as error:
        raise _no_client("AZURE_*", error) from error


CONNECT: Final = {"gs": google, "az": azure}
"""Functions that make a client, by scheme."""


def _allowing_http(base: str, limits: ClientConfig) -> ClientConfig:
    return {**limits, "allow_http": base.startswith("http://")}


def _no_client(variables: str, error: Exception) -> ConfigError:
    reason = " ".join(str(error).partition("Debug source:")[0].split())
    return ConfigError("the environment", [(variables, f"no client can be made: {reason}; correct these variables")])


def store_time(url: str, limits: RequestLimits) -> datetime:
    """The Date of the server's answer to an anonymous request; a refusal has it, too.

    Raises:
        UnknownOutcome: no answer.
        StoreError: an answer without a date.
    """
    request = urllib.request.Request(url, method="HEAD")  # noqa: S310  # the options allow http and https alone
    try:
        with urllib.request.urlopen(request, timeout=limits.no_progress.total_seconds()) as reply:  # noqa: S310  # see above
            date = reply.headers.get("Date")
    except HTTPError as refusal:
        with refusal:
            date = refusal.headers.get("Date")
    except OSError as error:
        raise UnknownOutcome(url, f"no answer when asked for the time: {error}") from error
    if date is None:
        raise StoreError(url, "the server's answers have no Date, so its clock cannot be asked for")
    return parsedate_to_datetime(date)
