"""Options to reach a store, attributes of every object that is written, and limits on waiting."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from tidemark.config import Duration, ObjectName, Settings, Size, http_url


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What the requests of all stores keep to, whatever the store and its user. Only tests pass others."""

    connections: int = 66
    """Idle connections that a process keeps: those of an agent with the most uploads at a time (64), and two."""

    connect_timeout: timedelta = timedelta(seconds=5)
    """Time to connect to an address. A lost packet of the handshake is sent again after one second, and after three."""

    no_progress: timedelta = timedelta(seconds=30)
    """Time without a byte after which a request ends. S3 may think for some seconds before it answers."""

    min_rate: int = 256 << 10
    """Bytes a second that a request has time for beyond the deadline: slower is a line that no broker can do with."""

    multipart_from: int = 1 << 30
    """Bytes above which an object goes to S3 in parts. A segment of Kafka's default size, 1 GiB, takes one request."""


LIMITS: Final = RequestLimits()
"""The limits outside of tests."""


_MIB = 1 << 20
_GIB = 1 << 30

_TAG = re.compile(r"[\w\s+\-=.:/@]*")
_LOOPBACK = {"127.0.0.1", "::1", "localhost"}

StorageClass = Literal["STANDARD", "STANDARD_IA", "ONEZONE_IA", "INTELLIGENT_TIERING", "GLACIER_IR"]
"""Classes from which an object can be read at once: uploaded objects are read again."""


class StoreOptions(Settings):
    """Options of a store. Credentials are never here: the store's own tools look for them in their usual places.

    ``path_style`` puts the bucket of S3, or the account of Azure, into the path (true) or the host name (false); by
    default AWS gets the latter and any other S3 endpoint the former.

    A request ends when no byte has moved for 30 seconds, or when the store has had it wait for ``deadline`` and the
    time that its bytes take at 256 KiB a second. Objects of more than 1 GiB go to S3 in parts of ``part_size``, and to
    other stores those of more than one part. :class:`RequestLimits` has these values.

    ``backend`` names a class, ``module:Class``, that is called with a URL and these options and is a
    :class:`tidemark.store.Store`. It serves the URLs of schemes that :mod:`tidemark.store.schemes` does not have.

    On S3 an object gets the KMS key, storage class and tags of the options, and no request reaches a bucket of another
    account than ``expected_bucket_owner``. :mod:`tidemark.store.schemes` has the options that a scheme does not know.
    """

    removed: ClassVar[Mapping[str, str]] = {
        "connections": "as many connections are kept as an agent uses with all of its uploads",
        "connect_timeout": "an attempt to connect ends after 5s; deadline limits the time of a whole request",
        "no_progress": "a request ends when no byte has moved for 30s; deadline limits the time of a whole request",
        "min_rate": "each request has, beyond deadline, the time that its bytes take at 256KiB a second",
        "multipart_from": "objects go in parts if they have more than 1GiB on S3, and more than part_size elsewhere",
    }

    backend: ObjectName | None = None

    endpoint_url: str | None = Field(default=None, pattern=r"^https?://[^\s/@]+$")
    region: str | None = None
    path_style: bool | None = None

    deadline: Duration = Field(default=timedelta(seconds=60), gt=timedelta(0))
    part_size: Size = Field(default=64 * _MIB, ge=5 * _MIB, le=5 * _GIB)

    sse_kms_key_id: str | None = Field(default=None, pattern=r"^\S+$")
    storage_class: StorageClass | None = None
    tags: dict[str, str] = Field(default_factory=dict, max_length=10)
    expected_bucket_owner: str | None = Field(default=None, pattern=r"^\d{12}$")

    @field_validator("endpoint_url")
    @classmethod
    def _check_endpoint(cls, url: str | None) -> str | None:
        return None if url is None else http_url(url)

    @field_validator("tags")
    @classmethod
    def _check_tags(cls, tags: dict[str, str]) -> dict[str, str]:
        """Check S3's own rules for tags."""
        for name, value in tags.items():
            if not 1 <= len(name) <= 128 or len(value) > 256:
                raise ValueError(f"the tag {name!r} must have a name of 1 to 128 and a value of at most 256 characters")
            if name.lower().startswith("aws:"):
                raise ValueError(f"the tag {name!r} starts with aws:, which is AWS's own")
            if not _TAG.fullmatch(name) or not _TAG.fullmatch(value):
                raise ValueError(f"the tag {name!r} may have only letters, digits, spaces and + - = . _ : / @")
        return tags

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.part_size > LIMITS.multipart_from:
            raise ValueError("part_size must be at most 1GiB: larger objects go to S3 in parts")
        if self.sse_kms_key_id and not self.is_private:
            raise ValueError("sse_kms_key_id needs an https endpoint: S3 accepts KMS requests only over TLS")
        return self

    @property
    def is_private(self) -> bool:
        """True if TLS or the loopback interface keeps others off the wire."""
        url = urlsplit(self.endpoint_url or "https://")
        return url.scheme == "https" or url.hostname in _LOOPBACK
