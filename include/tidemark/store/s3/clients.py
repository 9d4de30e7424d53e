"""The botocore clients of a process: made once for all buckets, limited, made again when credentials are refused."""

from __future__ import annotations

import gzip
import json
import sys
import threading
import time
from collections.abc import Callable, Hashable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from botocore.config import Config
from botocore.exceptions import BotoCoreError
from botocore.loaders import JSONFileLoader
from botocore.session import Session
from typing_extensions import override

from tidemark.errors import ConfigError
from tidemark.store.base import Traffic
from tidemark.store.options import LIMITS, RequestLimits, StoreOptions
from tidemark.store.s3 import credentials as s3_credentials
from tidemark.store.s3.timeouts import TimeLimits, pool_classes

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_RENEWAL_SECONDS = 5.0
_ADDRESSING = {None: "auto", True: "path", False: "virtual"}
_NOBODY = Traffic()

_UNPACKED_BY: Final[dict[str, Callable[[bytes], bytes]]] = {".json": bytes, ".json.gz": gzip.decompress}


class S3Clients:
    """A client for writes, and one for reads, which sign no hash of a body. Both keep to the limits. Thread-safe.

    A client keeps the credentials that it was made with, or their absence; those of a role it renews by itself.
    """

    def __init__(self, options: StoreOptions, traffic: Traffic = _NOBODY, limits: RequestLimits = LIMITS) -> None:
        self._options = options
        self._limits = limits
        self._traffic = traffic
        self._lock = threading.Lock()
        self._make()

    def renew(self) -> None:
        """Look for credentials again, after some were refused; at most every five seconds."""
        with self._lock:
            if time.monotonic() - self._made_at >= _RENEWAL_SECONDS:
                self._make()

    def _make(self) -> None:
        try:
            source = s3_credentials.source()
            create: Callable[..., Any]
            if source is None:
                create, options = session().create_client, self._options
            else:
                aws = source()
                create, options = aws.session.client, aws.reached(self._options)
            self.write = self._client(create, options, sign_payload=not options.is_private)
            self.read = self._client(create, options)
        except (BotoCoreError, ValueError) as error:
            rule = (
                f"no S3 client can be made: {error}; correct AWS's variables and files, or `store` in the configuration"
            )
            raise ConfigError("the environment", [("AWS_*", rule)]) from error
        self._made_at = time.monotonic()

    def _client(
        self, create: Callable[..., Any], options: StoreOptions, *, sign_payload: bool | None = None
    ) -> S3Client:
        """A client that tries a request once.

        Every PUT carries a checksum that the server verifies, and the signature covers the checksum. That is enough if
        others are off the wire; on an open wire a CRC could be forged, and the signature covers the body's hash.
        """
        addressing: Any = {"addressing_style": _ADDRESSING[options.path_style], "payload_signing_enabled": sign_payload}
        config = Config(
            retries={"total_max_attempts": 1, "mode": "standard"},
            connect_timeout=self._limits.connect_timeout.total_seconds(),
            read_timeout=self._limits.no_progress.total_seconds(),
            max_pool_connections=self._limits.connections,
            s3=addressing,
        )
        client: S3Client = create("s3", endpoint_url=options.endpoint_url, region_name=options.region, config=config)
        client.meta.events.register("before-send.s3", self._count)
        # botocore has no way to choose the connections' class; the tests of the limits show if this works.
        http: Any = client._endpoint.http_session  # type: ignore[attr-defined]
        http._pool_classes_by_scheme.update(pool_classes(self._time_limits(), self._traffic))
        return client

    def _time_limits(self) -> TimeLimits:
        limits, deadline = self._limits, self._options.deadline
        return TimeLimits(limits.no_progress.total_seconds(), deadline.total_seconds(), limits.min_rate)

    def _count(self, event_name: str, **_: object) -> None:
        self._traffic.request(event_name.rpartition(".")[2])


@cache
def _shared(connection: str, traffic: Hashable, limits: RequestLimits, _source: object) -> S3Clients:
    return S3Clients(StoreOptions.model_validate_json(connection), cast("Traffic", traffic), limits)


def clients(options: StoreOptions, traffic: Traffic = _NOBODY, limits: RequestLimits = LIMITS) -> S3Clients:
    """The process's clients for these options. Raises ConfigError if AWS's settings allow none."""
    return _shared(options.model_dump_json(), cast("Hashable", traffic), limits, s3_credentials.source())


def forget_clients() -> None:
    """Make new clients for all stores opened from now on; for a process with credentials that change."""
    _shared.cache_clear()


class _Undocumented(JSONFileLoader):
    """AWS's descriptions of its API, without their documentation, for botocore to send requests with.

    botocore keeps the description of a service for as long as a client lives, and half of it is documentation. It is
    left out while the file is parsed: dropping it afterwards would leave holes in the heap.
    """

    @override
    def load_file(self, file_path: str) -> Any:
        for extension, unpacked in _UNPACKED_BY.items():
            path = Path(f"{file_path}{extension}")
            if path.is_file():
                return json.loads(unpacked(path.read_bytes()), object_pairs_hook=_without_documentation)
        return None


def session() -> Session:
    """A session of botocore: not a global one, which would keep the first credentials that it ever found."""
    made = Session()
    made.get_component("data_loader").file_loader = _Undocumented()
    return made


def _without_documentation(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of the file without documentation; its name stays, as botocore looks for some."""
    return {sys.intern(name): "" if _is_documentation(name, value) else value for name, value in pairs}


def _is_documentation(name: str, value: object) -> bool:
    return name == "documentation" and isinstance(value, str)
