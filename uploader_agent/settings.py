"""The agent's file: all settings of an operator, with their defaults. Unknown keys are errors.

``TIDEMARK_AGENT__UPLOAD__CONCURRENCY=4`` in the environment overrides ``upload.concurrency``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, Field, field_validator, model_validator

from tidemark.config import Duration, Settings, Size, load
from tidemark.endpoints import EndpointSettings, check_served
from tidemark.formats.keys import check_cluster
from tidemark.store import StoreOptions

ENVIRONMENT_PREFIX = "TIDEMARK_AGENT__"

PROTOCOLS = frozenset({"PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"})
"""Kafka's security protocols (``SecurityProtocol``)."""

_INTERNAL = re.compile(r"__.*|.*-(?:changelog|repartition)")
"""Kafka's own topics, and the "internal topics" that Kafka Streams makes."""


_BROKER = r"([^\s:/@,\[\]]+|\[[0-9A-Fa-f:.]+\]):\d{1,5}"
_BROKERS = f"^{_BROKER}(,{_BROKER})*$"


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"is not a valid regular expression: {error}") from error
    return text


TopicPattern = Annotated[str, AfterValidator(_pattern)]
"""A regular expression that must match a topic's whole name."""


_LEAST_FRESHNESS = timedelta(seconds=3)
"""The least freshness: a third of it is the time between two packs, and each pack costs two requests."""


def _freshness(duration: timedelta) -> timedelta:
    if duration < _LEAST_FRESHNESS:
        raise ValueError(f"must be at least {_LEAST_FRESHNESS.seconds}s")
    return duration


def _check_client(options: dict[str, str | int | bool]) -> dict[str, str | int | bool]:
    from kafka.admin import KafkaAdminClient

    unknown = sorted(options.keys() - KafkaAdminClient.DEFAULT_CONFIG.keys())
    if unknown:
        raise ValueError(f"kafka-python's admin client knows no {', '.join(unknown)}")
    for name, value in options.items():
        kind = type(KafkaAdminClient.DEFAULT_CONFIG[name])
        if kind in {int, bool} and type(value) is not kind:
            raise ValueError(f"{name} must be {'a whole number' if kind is int else 'true or false'}")
    if (protocol := options.get("security_protocol", "SSL")) not in PROTOCOLS:
        raise ValueError(f"security_protocol must be one of {', '.join(sorted(PROTOCOLS))}, but it is {protocol!r}")
    return options


class BrokerSettings(Settings):
    """The path of the broker's own configuration, and options to reach the broker that it does not state.

    ``client`` is passed to kafka-python's admin client (``security_protocol``, ``ssl_cafile``, …), ``zookeeper`` to
    kazoo's client (``use_ssl``, ``ca``, ``sasl_options``, …) if the broker uses ZooKeeper.
    """

    properties: Path
    bootstrap: str | None = Field(default=None, pattern=_BROKERS)
    client: dict[str, str | int | bool] = Field(default_factory=dict)
    zookeeper: dict[str, str | int | bool | dict[str, str]] = Field(default_factory=dict)

    _check_client = field_validator("client")(_check_client)

    @field_validator("zookeeper")
    @classmethod
    def _check_zookeeper(cls, options: dict[str, Any]) -> dict[str, Any]:
        if not options:
            return options
        from kazoo.client import KazooClient

        known = signature(KazooClient).parameters.keys() - {"handler", "logger", "client_id", "kwargs"}
        unknown = sorted(options.keys() - known)
        if unknown:
            raise ValueError(f"kazoo's client knows no {', '.join(unknown)}")
        return options


class FetchSettings(Settings):
    """Brokers to fetch from where nobody has their disks, and the directory ``spool`` for what was fetched.

    ``client`` is passed to kafka-python (``security_protocol``, ``sasl_mechanism``, ...). Of ``slots`` agents this one
    is number ``slot``; each owns some of the partitions. With ``rack`` batches come from a replica there (KIP-392).
    With ``lease`` a second process of the slot waits until the first has not renewed its lease for that time.
    """

    removed: ClassVar[Mapping[str, str]] = {"segment": "a segment has 64MiB"}

    bootstrap: str = Field(pattern=_BROKERS)
    spool: Path
    client: dict[str, str | int | bool] = Field(default_factory=dict)
    slot: int = Field(default=0, ge=0)
    slots: int = Field(default=1, ge=1, le=1000)
    rack: str = ""
    spool_max: Size = Field(default=10 << 30, ge=1 << 20)
    largest_message: Size = Field(default=64 << 20, ge=1 << 20, le=1 << 30)
    lease: Duration | None = None

    _check_client = field_validator("client")(_check_client)

    @model_validator(mode="after")
    def _check_slot(self) -> Self:
        if self.slot >= self.slots:
            raise ValueError(f"slot must be below slots, which is {self.slots}, but it is {self.slot}")
        return self


class UploadSettings(Settings):
    """At most ``concurrency`` segments are uploaded at a time; ``bandwidth`` caps their bytes per second in total."""

    removed: ClassVar[Mapping[str, str]] = {
        "retry_initial": "a failed partition is tried again after 200ms, then after twice as long each time, up to 30s",
        "retry_cap": "a failed partition is tried again at least every 30s",
    }

    concurrency: int = Field(default=8, ge=1, le=64)
    bandwidth: Size | None = Field(default=None, ge=1 << 16)


class HoldSettings(Settings):
    """The files that are kept from the broker's retention until they are uploaded.

    ``links`` are directories for hard links, outside ``log.dirs``, one on each file system that has log directories;
    elsewhere descriptors hold the files. ``max`` is a share of the disk that a log directory is on.
    """

    removed: ClassVar[Mapping[str, str]] = {
        "min_free": "5% of the disk stay free; max bounds the share of it that held segments take",
        "max_age": "a segment that retention has deleted is held for a day; max bounds how much that can be",
    }

    enabled: bool = True
    links: tuple[Path, ...] = ()
    max: float = Field(default=0.10, ge=0, le=1)


class FillSettings(Settings):
    """Whether the agent looks for gaps of other leaders, and fills them from this broker's replicas.

    ``remote_tier`` says what becomes of offsets that only Kafka's own remote tier has: they are fetched from the
    leader, at most ``remote_tier_bandwidth`` bytes per second, or skipped.
    """

    removed: ClassVar[Mapping[str, str]] = {"interval": "the agent looks for gaps once a minute"}

    enabled: bool = True
    remote_tier: Literal["fetch", "skip"] = "fetch"
    remote_tier_bandwidth: Size = Field(default=16 << 20, ge=1 << 16)

    @property
    def fetches_remote_tier(self) -> bool:
        """True if what only the remote tier has is fetched."""
        return self.enabled and self.remote_tier == "fetch"


class HttpSettings(Settings):
    """The address of the server for metrics and health; without ``port`` there is none; port 0 takes a free one."""

    host: str = "127.0.0.1"
    port: int | None = Field(default=None, ge=0, le=65535)


class LogSettings(Settings):
    """The logging to standard error."""

    removed: ClassVar[Mapping[str, str]] = {"repeat": "an error that lasts is logged again every five minutes"}

    format: Literal["console", "json"] = "console"
    level: Literal["debug", "info", "warning", "error"] = "info"


class AgentSettings(Settings):
    """The whole file. ``cluster`` is the name in the store's keys; default: the cluster's own id.

    Exactly one of ``broker``, for a broker's own disk, and ``fetch`` is given. Without a disk nothing can be held, and
    no gap filled from it.

    ``freshness`` is the time from append to query, by topic pattern; the first pattern that matches counts. Bytes are
    packed when they are a third of it old. Where no pattern matches, tails are packed after ``tail_after`` without an
    append.
    """

    removed: ClassVar[Mapping[str, str]] = {
        "index.min_interval": "news are in the agent's index after ten seconds at most",
        "index.idle_interval": "the agent writes its index at least once a minute",
        "scan_interval": "the agent looks at the whole disk every 30s, and inotify tells it of changes at once",
        "metadata_interval": "the agent asks every 10s who leads, and at once when the disk hints at a change",
        "stuck_after": "an agent is unhealthy after ten minutes without progress, later if upload.bandwidth is low",
    }

    broker: BrokerSettings | None = None
    fetch: FetchSettings | None = None
    raw: EndpointSettings
    state_dir: Path
    store: StoreOptions = StoreOptions()
    cluster: Annotated[str, AfterValidator(check_cluster)] | None = None
    include: tuple[TopicPattern, ...] = (".*",)
    exclude: tuple[TopicPattern, ...] = ()
    internal_topics: bool = False
    freshness: dict[TopicPattern, Annotated[Duration, AfterValidator(_freshness)]] = Field(default_factory=dict)
    tail_after: Duration = timedelta(minutes=10)
    drain: Duration = timedelta(seconds=20)
    upload: UploadSettings = UploadSettings()
    hold: HoldSettings = HoldSettings()
    fill: FillSettings = FillSettings()
    http: HttpSettings = HttpSettings()
    log: LogSettings = LogSettings()

    @model_validator(mode="before")
    @classmethod
    def _without_disk(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not data.get("fetch"):
            return data
        off: dict[str, Any] = {"enabled": False}
        return {**data, "hold": off | dict(data.get("hold") or {}), "fill": off | dict(data.get("fill") or {})}

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if (self.broker is None) == (self.fetch is None):
            raise ValueError("exactly one of broker and fetch must be given")
        if self.fetch is not None and (self.hold.enabled or self.fill.enabled):
            raise ValueError("hold and fill need a broker's disk: with fetch they cannot be enabled")
        return self

    @model_validator(mode="after")
    def _check_served(self) -> Self:
        check_served(self.raw, self.store)
        return self

    def accepts_topic(self, topic: str) -> bool:
        """True if the topic's segments are uploaded: included, not excluded, and not internal unless asked for."""
        if _INTERNAL.fullmatch(topic) and not self.internal_topics:
            return False
        if any(re.fullmatch(pattern, topic) for pattern in self.exclude):
            return False
        return any(re.fullmatch(pattern, topic) for pattern in self.include)

    def freshness_of(self, topic: str) -> float | None:
        """Seconds from append to query that the topic promises; None where only its quiet tail is packed."""
        matching = (duration for pattern, duration in self.freshness.items() if re.fullmatch(pattern, topic))
        return next((duration.total_seconds() for duration in matching), None)


FIXED = ("broker", "fetch", "raw", "store", "cluster", "state_dir", "hold.enabled", "hold.links", "http")
"""The settings that a running agent keeps; all others are applied when SIGHUP makes it read its file again."""


def changed_fields(old: AgentSettings, new: AgentSettings) -> list[str]:
    """Dotted names of the fields that differ: a section's fields separately, all else as a whole."""
    return [name for name, value in _flat(old).items() if _flat(new)[name] != value]


def is_fixed(field: str) -> bool:
    """True if :data:`FIXED` contains ``field``, a dotted name, or a section that contains it."""
    return any(field == name or field.startswith(f"{name}.") for name in FIXED)


def _flat(model: BaseModel, prefix: str = "") -> dict[str, object]:
    fields: dict[str, object] = {}
    for name in type(model).model_fields:
        value = getattr(model, name)
        fields |= _flat(value, f"{prefix}{name}.") if isinstance(value, BaseModel) else {f"{prefix}{name}": value}
    return fields


def load_settings(path: Path) -> AgentSettings:
    """Read the agent's file. Raises :class:`tidemark.errors.ConfigError` naming file, field and rule."""
    return load(AgentSettings, path, prefix=ENVIRONMENT_PREFIX)
