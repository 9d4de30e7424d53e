"""The topics file: a deployment's topics, the places of raw segments and tables, and the settings of each topic."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from datetime import date, timedelta
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, Self, overload
from zoneinfo import ZoneInfo, available_timezones

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    StrictBool,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from tidemark import user_cache
from tidemark.catalogs import CatalogSettings, catalog_table, delta_table
from tidemark.concurrency import Lru
from tidemark.config import (
    ENVIRONMENT_PREFIX,
    Duration,
    FileVersion,
    Settings,
    Share,
    Size,
    checked,
    hint,
    mapping_in,
    named_in,
    override,
    text_of,
)
from tidemark.endpoints import EndpointSettings, StoreUrl, check_served
from tidemark.errors import ConfigError
from tidemark.formats.keys import DeploymentKeys, TableKeys, check_cluster, check_topic
from tidemark.formats.table.base_columns import OPTIONAL, check_optional
from tidemark.formats.table.parquet_layout import ParquetSettings
from tidemark.formats.table.partitioning import BY_DATE, PartitionBy
from tidemark.parsers.settings import BytesParser, FunctionParser, JsonParser, ParserSettings, Registry
from tidemark.store import StoreOptions
from tidemark.store.schemes import scheme_of, split_store_url

TopicName = Annotated[str, AfterValidator(check_topic)]
ClusterName = Annotated[str, AfterValidator(check_cluster)]

Broker = Annotated[str, Field(pattern=r"^[A-Za-z0-9.-]+:\d{1,5}$")]
"""Host and port of a broker."""

OptionalColumn = Annotated[str, AfterValidator(check_optional)]
"""A column that a topic may leave out, without ``kafka_``; incarnation, partition and offset always stay."""

_TABLE: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,200}$"


def _check_table_name(name: str) -> str:
    if not re.search(_TABLE, name):
        rule = "1 to 201 of a-z A-Z 0-9 . _ -, of which the first is a letter or a digit"
        raise ValueError(f"{name!r} is not a valid table name: {rule}; give the topic another one under `table`")
    return name


def _check_registry_name(name: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9_-]{0,62}", name):
        raise ValueError("the name of a registry must be 1 to 63 of a-z 0-9 _ -, of which the first is a letter")
    return name


RegistryName = Annotated[str, AfterValidator(_check_registry_name)]
"""The name of a schema registry, by the rule of a catalog's name."""

TableName = Annotated[str, AfterValidator(_check_table_name), WithJsonSchema({"type": "string", "pattern": _TABLE})]
"""The name of a table, as people wrote it."""


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


Columns = Annotated[tuple[str, ...], BeforeValidator(_listed)]
"""Names of columns, or one name."""


@cache
def _time_zones() -> frozenset[str]:
    """The names of the tz database, which are looked for in its folders: that takes some milliseconds."""
    return frozenset(available_timezones())


class SaneTimestamps(Settings):
    """Record times outside go to quarantine: before ``earliest``, or more than ``ahead`` after the upload."""

    earliest: date = date(1970, 1, 2)
    ahead: Duration = timedelta(days=1)


class BatchWindow(Settings):
    """A run starts when this size has been uploaded or this age is reached, whichever comes first."""

    size: Size = Field(default=64 << 20, ge=1)
    age: Duration = timedelta(seconds=60)


class Compaction(Settings):
    """The merge of small files, up to ``target`` bytes."""

    removed: ClassVar = {"files": "an open date is compacted once a partition has 32 small files in it"}

    target: Size = Field(default=128 << 20, ge=1 << 20, le=1 << 30)


class RetentionSettings(Settings):
    """The time that a topic is kept: for ever by default; nothing is removed before ``apply`` is set.

    ``table`` counts from a date's end. ``raw`` is the backfill window: for this time after its upload, and after its
    last record, a segment can be converted again. ``erased`` is the time that files with erased rows, and evidence of
    them, are kept after they were replaced; it needs no ``apply``.
    """

    table: Duration | None = Field(default=None, ge=timedelta(days=1))
    raw: Duration | None = Field(default=None, ge=timedelta(days=1))
    apply: StrictBool = False
    erased: Duration = Field(default=timedelta(days=1), ge=timedelta(0))


class QuarantineAlert(Settings):
    """People are alerted if more than ``rate`` of the records parsed in the time ``over`` were refused."""

    rate: Share = 0.001
    over: Duration = Field(default=timedelta(hours=1), ge=timedelta(minutes=1))


class AcceptedDoubts(Settings):
    """Numbers of ``moved_keys``, ``outranked_keys`` and ``uncertain`` offsets of a state that people have accepted."""

    moved_keys: int = Field(default=0, ge=0)
    outranked_keys: int = Field(default=0, ge=0)
    uncertain: int = Field(default=0, ge=0)


class StateSettings(Settings):
    """The state table of a topic: one row for each key, by default ``<table>_current``.

    ``key`` are the columns that tell rows apart; ``framing`` says what stands before the bytes of ``kafka_key``.
    ``envelope`` says which records delete a key, and which columns the others have; see
    :mod:`tidemark.table.state_envelopes`. Of two records of a key, the one with the greater values in the columns
    ``order`` is the newer, by default that of the greater offset. The job is due once its last commit is ``every`` old.
    ``delete_retention`` takes the place of the topic's ``delete.retention.ms``, which manifests state. Up to the counts
    in ``accept``, people have looked into keys that moved and deletions that may be missing, and get no incident.
    """

    removed: ClassVar = {
        "leaf": "a file of a state has about 32 MiB",
        "versions": "the files of a replaced commit stay for a day",
    }

    table: TableName | None = None
    key: Columns = ("kafka_key",)
    framing: Literal["confluent"] | None = None
    envelope: Literal["none", "debezium", "maxwell"] = "none"
    order: Columns = ()
    every: Duration = Field(default=timedelta(hours=1), ge=timedelta(hours=1))
    delete_retention: Duration | None = Field(default=None, ge=timedelta(0))
    accept: AcceptedDoubts = AcceptedDoubts()

    @field_validator("order", mode="before")
    @classmethod
    def _by_offset(cls, value: object) -> object:
        return () if value == "offset" else value

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        if not self.key:
            raise ValueError("key: must be kafka_key, or name one column at least")
        if self.framing and self.key != ("kafka_key",):
            raise ValueError(f"framing: stands before kafka_key, and key names {', '.join(self.key)}; leave it out")
        for name, columns in (("key", self.key), ("order", self.order)):
            if len({*columns}) < len(columns):
                raise ValueError(f"{name}: names a column twice: {', '.join(columns)}")
        return self

    @property
    def order_columns(self) -> tuple[str, ...]:
        """The names of the columns of ``order`` in the state table; those of fields of structs have no points."""
        return tuple(path.replace(".", "_") for path in self.order)


class WorkLimits(Settings):
    """Limits of converting: ``batch`` bounds the records of a batch when decompressed; a larger one is quarantined.

    Those of memory and time follow from it, see :class:`tidemark_spark.model.StepLimits`.
    """

    removed: ClassVar = {
        "memory": "converting may take 16 times limits.batch, and 1 GiB at least",
        "time": "converting may take 10 s, and what its bytes need at 256 KiB/s",
        "rate": "converting may take 10 s, and what its bytes need at 256 KiB/s",
    }

    batch: Size = Field(default=128 << 20, ge=1 << 20, le=1 << 30)


_LATE_AFTER: Final = timedelta(minutes=15)
_OVERDUE: Final = timedelta(days=1)

LIVE_BYTES: Final = 256 << 20
"""The most bytes of a topic that a live landing takes; a larger backlog is left to the topic's own runs."""

_LIVE_MISSED: Final = 3
"""After this multiple of its ``freshness``, offsets that live landings left are landed by the topic's own runs."""


OF_ROWS: Final = ("topic", "cluster", "time_zone", "partition_by", "sane_timestamps", "keep", "limits", "parser")
"""The settings of a topic that rows depend on. Their defaults never change: see :meth:`Settings.digest_of`."""


class TopicSettings(Settings):
    """The settings of one topic.

    ``freshness`` is the promise from append to query. Agents pack by their own setting of that name
    (:mod:`uploader_agent.packing.thread`); the topic is landed live with others of its cluster
    (:mod:`tidemark_airflow.triggers.landing`), and its own runs land the rest, without a ``freshness`` all;
    :mod:`tidemark.monitoring.topic_conditions` watches it. ``catalogs`` names those that list its table; None means
    all.
    """

    removed: ClassVar = {
        "overdue": "a date waits for delayed partitions for a day, or for its lateness if that is longer"
    }

    topic: TopicName
    cluster: ClusterName
    table: TableName
    owner: str = "tidemark"
    time_zone: str = "UTC"
    partition_by: PartitionBy = BY_DATE
    lateness: Duration = timedelta(hours=1)
    freshness: Duration | None = Field(default=None, ge=timedelta(seconds=10))
    sane_timestamps: SaneTimestamps = SaneTimestamps()
    batch: BatchWindow = BatchWindow()
    compaction: Compaction = Compaction()
    parquet: ParquetSettings = ParquetSettings()
    catalogs: tuple[str, ...] | None = None
    keep: tuple[OptionalColumn, ...] = OPTIONAL
    retention: RetentionSettings = RetentionSettings()
    quarantine: QuarantineAlert = QuarantineAlert()
    limits: WorkLimits = WorkLimits()
    parser: ParserSettings = BytesParser()
    state: StateSettings | None = None

    @field_validator("time_zone")
    @classmethod
    def _check_time_zone(cls, name: str) -> str:
        if name not in _time_zones():
            raise ValueError("must be a name of the tz database, such as UTC or Europe/Vienna")
        return name

    @field_validator("table")
    @classmethod
    def _check_table(cls, table: str) -> str:
        if table.endswith("__quarantine"):
            raise ValueError("must not end in __quarantine, which is the name of the table of refused rows")
        if table.endswith(".final"):
            raise ValueError("must not end in .final, which is the name of the asset of a table's closed dates")
        return table

    @model_validator(mode="after")
    def _check_state(self) -> Self:
        if self.state is None:
            return self
        needs = ["key", "timestamp", *(["value"] if self.state.envelope == "none" else [])]
        if lacking := [name for name in needs if name not in self.keep]:
            raise ValueError(f"state: needs {', '.join(lacking)} in keep: keys, deletions and their order come from it")
        return self

    @model_validator(mode="after")
    def _check_layout(self) -> Self:
        declared = self.parser.columns if isinstance(self.parser, JsonParser | FunctionParser) else ()
        types = {column.name: column.parsed_type.name for column in declared}
        if unsuited := [f"parquet.{name}: {problem}" for name, problem in self.parquet.unsuited(types)]:
            raise ValueError("; ".join(unsuited))
        return self

    @property
    def tables(self) -> tuple[str, ...]:
        """The names of the topic's tables in the lake."""
        return (self.table, self.state_table) if self.state else (self.table,)

    @property
    def state_table(self) -> str:
        """The name of the state table, whether there is one or not."""
        return (self.state and self.state.table) or f"{self.table}_current"

    @property
    def late_after(self) -> timedelta:
        """Time that landable offsets may wait before people are alerted: ``freshness``, or 15 minutes without one."""
        return self.freshness or _LATE_AFTER

    @property
    def overdue(self) -> timedelta:
        """Time for which a date that could close waits for delayed partitions: a day, or ``lateness`` if longer.

        Who waits for late records for days can wait for a broker as long; in a day somebody has looked at the broker.
        """
        return max(_OVERDUE, self.lateness)

    @property
    def window(self) -> BatchWindow:
        """The start of the topic's own runs: with a ``freshness``, for offsets that live landings leave."""
        if self.freshness is None:
            return self.batch
        return BatchWindow(size=LIVE_BYTES, age=_LIVE_MISSED * self.freshness)

    @property
    def zone(self) -> ZoneInfo:
        """The zone in which a record's time becomes its ``dt``."""
        return ZoneInfo(self.time_zone)

    @property
    def digest(self) -> str:
        """The identity of the settings that rows depend on: 16 hexadecimal digits."""
        return self.digest_of(*OF_ROWS)


class Listed(NamedTuple):
    """What finds a topic among thousands; ``live`` is True if it has a ``freshness``."""

    cluster: str
    topic: str
    live: bool


class _CheckedTopics(Sequence[TopicSettings]):
    """The topics of a file that a process has checked as a whole. Each is made when it is asked for.

    ``values`` are their plain values, with the file's defaults. To ask raises ConfigError if a file that the topic
    names has changed since the topics file was loaded, and is wrong now.
    """

    def __init__(self, source: str, values: Sequence[Mapping[str, Any]], registries: Mapping[str, Registry]) -> None:
        self._source, self._values, self._registries = source, values, registries
        self._made: dict[int, TopicSettings] = {}
        self.listed = tuple(
            Listed(value["cluster"], value["topic"], value.get("freshness") is not None) for value in values
        )

    def __len__(self) -> int:
        return len(self._values)

    @overload
    def __getitem__(self, at: int) -> TopicSettings: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[TopicSettings, ...]: ...

    def __getitem__(self, at: int | slice) -> TopicSettings | tuple[TopicSettings, ...]:
        numbers = range(len(self))[at]
        return self._topic(numbers) if isinstance(numbers, int) else tuple(map(self._topic, numbers))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # like that of a list

    def __reduce__(self) -> tuple[type[tuple[TopicSettings, ...]], tuple[tuple[TopicSettings, ...]]]:
        """Made, for another process: it may not have the files that the topics name."""
        return tuple, (tuple(self),)

    def _topic(self, number: int) -> TopicSettings:
        if number not in self._made:
            try:
                self._made[number] = checked(TopicSettings, self._values[number], self._source, named=self._registries)
            except ConfigError as error:
                place = f"topics.{self.listed[number].topic}"
                problems = [(f"{place}.{field}" if field else place, rule) for field, rule in error.problems]
                raise ConfigError(self._source, problems) from None
        return self._made[number]


class Deployment(Settings):
    """The topics file as a whole.

    ``bootstrap`` has the address of a broker by cluster: people's commands ask it, and lineage names the cluster by it.
    ``registries`` has the schema registries by the names by which parsers refer to them. It stands before ``topics``,
    as pydantic validates fields in their order here, whatever their order in the file.
    """

    removed: ClassVar = {"watch.agent_gone": "an agent is gone once it was silent for three minutes"}

    raw: EndpointSettings
    lake: StoreUrl
    store: StoreOptions = StoreOptions()
    bootstrap: dict[ClusterName, Broker] = Field(default_factory=dict)
    catalogs: tuple[CatalogSettings, ...] = ()
    registries: dict[RegistryName, Registry] = Field(default_factory=dict)
    topics: Annotated[Sequence[TopicSettings], AfterValidator(tuple)]

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, value: object) -> object:
        """See :func:`_filled_in`."""
        return _filled_in(value) if isinstance(value, dict) else value

    @field_validator("registries", mode="wrap")
    @classmethod
    def _name_registries(cls, value: Any, validate: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        """Let parsers find the registries by name; if one is wrong, that is the one error, so no parser has another."""
        try:
            known = validate(value)
        except ValidationError:
            stated = value if isinstance(value, dict) else {}
            named_in(info).update(dict.fromkeys(stated, Registry.model_construct(url="")))
            raise
        named_in(info).update(known)
        return known

    @model_validator(mode="after")
    def _check_unique(self) -> Self:
        for kind, names in (
            ("topic", [f"{topic.cluster}/{topic.topic}" for topic in self.topics]),
            ("table", [name for topic in self.topics for name in topic.tables]),
        ):
            twice = sorted(name for name, count in Counter(names).items() if count > 1)
            if twice:
                raise ValueError(f"{kind} {', '.join(twice)} appears twice; each must be unique in a deployment")
        return self

    @model_validator(mode="after")
    def _check_served(self) -> Self:
        check_served(self.raw, self.store, self.lake)
        return self

    @model_validator(mode="after")
    def _check_catalogs(self) -> Self:
        if self.catalogs and scheme_of(self.lake) == "az":
            raise ValueError("catalogs: engines do not know az:// URLs, so no catalog can list tables of such a lake")
        names = [catalog.name for catalog in self.catalogs]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"catalogs: {', '.join(twice)} appears twice; each needs a name of its own")
        for topic in self.topics:
            unknown = sorted(set(topic.catalogs or ()) - {*names})
            if unknown:
                rule = f"{unknown[0]} is not one of the catalogs of the file; {hint(unknown[0], names)}"
                raise ValueError(f"topic {topic.cluster}/{topic.topic}: catalogs: {rule}")
        for catalog in self.catalogs:
            tables = [table for topic in self.topics for table in topic.tables]
            listed = [catalog_table(table) for table in tables]
            if catalog.delta_suffix is not None:
                listed += [delta_table(table, catalog.delta_suffix) for table in tables]
            if catalog.kind in {"glue", "hive"}:
                listed = [name.lower() for name in listed]  # which do not distinguish them
            twice = sorted(name for name, count in Counter(listed).items() if count > 1)
            if twice:
                raise ValueError(f"catalogs: two tables would have the name {', '.join(twice)} there; rename one")
        return self

    def catalogs_of(self, topic: TopicSettings) -> tuple[CatalogSettings, ...]:
        """The catalogs that list the table of ``topic``."""
        return tuple(catalog for catalog in self.catalogs if topic.catalogs is None or catalog.name in topic.catalogs)

    @property
    def listed(self) -> Sequence[Listed]:
        """The names of the topics, in their order; of a file that was checked before, no topic is made for them."""
        if isinstance(self.topics, _CheckedTopics):
            return self.topics.listed
        return [Listed(topic.cluster, topic.topic, topic.freshness is not None) for topic in self.topics]

    def topics_of(self, cluster: str | None) -> list[TopicSettings]:
        """The topics of ``cluster``, or of all clusters if None."""
        return [self.topics[at] for at, listed in enumerate(self.listed) if cluster in {None, listed.cluster}]

    def topic(self, name: str, cluster: str | None = None) -> TopicSettings:
        """The settings of a topic; ``cluster`` is needed only if two clusters have a topic of this name.

        Raises:
            ConfigError: there is none, or more than one.
        """
        named = [
            (at, listed.cluster)
            for at, listed in enumerate(self.listed)
            if listed.topic == name and cluster in {None, listed.cluster}
        ]
        if len(named) == 1:
            return self.topics[named[0][0]]
        if named:
            clusters = ", ".join(of for _, of in named)
            rule = f"{name} is a topic of several clusters, {clusters}: name one of them"
        elif cluster is not None and cluster not in self.clusters:
            rule = f"no topic belongs to a cluster {cluster}; {hint(cluster, self.clusters)}"
        else:
            rule = f"{name} is not a topic of the file; {hint(name, [listed.topic for listed in self.listed])}"
        raise ConfigError("the topics file", [("topics", rule)])

    def table_keys(self, topic: TopicSettings) -> TableKeys:
        """The keys of the table of ``topic`` and of its ledger, below :attr:`lake_store`."""
        return TableKeys(split_store_url(self.lake)[1], topic.cluster, topic.topic, topic.table)

    def state_keys(self, topic: TopicSettings) -> TableKeys:
        """The keys of :meth:`table_keys`, with the folder of the topic's state table as that of the table."""
        return replace(self.table_keys(topic), table=topic.state_table)

    def deployment_keys(self, cluster: str) -> DeploymentKeys:
        """The keys of objects about all tables of ``cluster``, below :attr:`lake_store`."""
        return DeploymentKeys(split_store_url(self.lake)[1], cluster)

    def live_topics(self, cluster: str) -> tuple[TopicSettings, ...]:
        """The topics of ``cluster`` that have a ``freshness``, by name."""
        live = (self.topics[at] for at, listed in enumerate(self.listed) if listed.live and listed.cluster == cluster)
        return tuple(sorted(live, key=lambda topic: topic.topic))

    @property
    def clusters(self) -> tuple[str, ...]:
        """The clusters that topics name, in order."""
        return tuple(sorted({listed.cluster for listed in self.listed}))

    @property
    def lake_store(self) -> str:
        """The URL of the lake's store, without its prefix."""
        return split_store_url(self.lake)[0]


def _filled_in(value: dict[str, Any]) -> dict[str, Any]:
    """The values with the file's ``cluster`` and ``defaults`` in each topic, and its own name as its table's."""
    value = dict(value)
    shared = {"cluster": value.pop("cluster", None)} if value.get("cluster") is not None else {}
    defaults = value.pop("defaults", None) or {}
    if not isinstance(defaults, dict):
        rule = "defaults must be a mapping of keys to values, as a topic is"
        raise ValueError(rule)  # noqa: TRY004 - pydantic takes it for a broken rule
    shared |= defaults
    topics = value.get("topics")
    if isinstance(topics, list):
        if bare := [item for item in topics if isinstance(item, str)]:
            raise ValueError(f"topics: each is a mapping of keys to values: write `- topic: {bare[0]}`")
        value["topics"] = [_with_defaults(item, shared) for item in topics]
    return value


def _with_defaults(item: object, shared: dict[str, object]) -> object:
    if not isinstance(item, dict):
        return item
    merged = shared | item
    if "topic" in merged:
        merged.setdefault("table", merged["topic"] if _is_topic(merged["topic"]) else "unnamed")
    return merged


def _is_topic(name: object) -> bool:
    """False for what the topic's own rule refuses: its table need not be refused as well."""
    try:
        return isinstance(name, str) and bool(check_topic(name))
    except ValueError:
        return False


def check_exists(path: Path) -> None:
    """Raise ConfigError, with the ways to name a topics file, if there is no file ``path``."""
    if not path.exists():
        rule = "does not exist; name the topics file by --topics or TIDEMARK_TOPICS, in Airflow by [tidemark] topics"
        raise ConfigError(str(path), [("", rule)])


def load_topics(path: Path) -> Deployment:
    """The topics file ``path``. Raises :class:`tidemark.errors.ConfigError` naming file, field and rule.

    A process reads each version of the file once: again once its text, a file that it names, or a variable that
    overrides it has changed. A file of thousands of topics takes a second to check, so the first process that has
    checked a version keeps its plain values for the user's other processes (:mod:`tidemark.user_cache`). Those make
    only the topics that they ask for.
    """
    check_exists(path)
    text = text_of(path)
    overrides = {name: value for name, value in os.environ.items() if name.startswith(ENVIRONMENT_PREFIX)}
    known = _parsed.get(path.absolute())
    if known is not None and known.is_of(text, overrides):
        return known.deployment
    parsed = _checked_before(path, text, overrides) or _parsed_whole(path, text, overrides)
    _parsed.keep(path.absolute(), parsed)
    return parsed.deployment


class _ParsedFile(NamedTuple):
    """A topics file, and all that its values depend on."""

    text: str
    overrides: Mapping[str, str]
    files: Mapping[Path, FileVersion | None]
    deployment: Deployment

    def is_of(self, text: str, overrides: Mapping[str, str]) -> bool:
        """True if parsing again would give the same."""
        same = (self.text, self.overrides) == (text, overrides)
        return same and all(FileVersion.of(path) == version for path, version in self.files.items())


_parsed: Final[Lru[Path, _ParsedFile]] = Lru(4)

_WORTH_KEEPING: Final = 16 << 10
"""Characters of a topics file from which its values are kept: a shorter one takes a few milliseconds to check."""

_APART: Final = frozenset({"raw", "lake", "store", "bootstrap"})
"""Sections of the file on which no topic depends: a variable may override them in a file that was checked before."""


def _parsed_whole(path: Path, text: str, overrides: Mapping[str, str]) -> _ParsedFile:
    value, files = mapping_in(text, str(path)), dict[Path, FileVersion | None]()
    plain = {name: deepcopy(section) if name in _APART else section for name, section in value.items()}
    override(value, str(path), overrides)
    deployment = checked(Deployment, value, str(path), files=files)
    if not deployment.topics:
        raise ConfigError(str(path), [("topics", "must name one topic at least")])
    parsed = _ParsedFile(text, overrides, files, deployment)
    if _is_kept(text, overrides):
        _keep(path, parsed, plain)
    return parsed


def _is_kept(text: str, overrides: Mapping[str, str]) -> bool:
    sections = {name.removeprefix(ENVIRONMENT_PREFIX).lower().partition("__")[0] for name in overrides}
    return len(text) >= _WORTH_KEEPING and sections <= _APART


def _keep(path: Path, parsed: _ParsedFile, plain: dict[str, Any]) -> None:
    """Keep the values of a right file, without those of variables, unless they would not give the same again."""
    apart = _filled_in(plain)
    topics = apart.pop("topics")
    files = [(str(named.absolute()), version) for named, version in parsed.files.items()]
    try:
        entry = json.loads(json.dumps({"apart": apart, "topics": topics, "files": files}, default=_iso))
    except TypeError:  # such as bytes, which JSON cannot hold
        return
    again = _of_entry(path, parsed.text, parsed.overrides, entry)
    if again is not None and again.deployment == parsed.deployment:
        user_cache.keep(_KIND, entry, str(path.absolute()), parsed.text)


def _checked_before(path: Path, text: str, overrides: Mapping[str, str]) -> _ParsedFile | None:
    """The file as another process has checked it; None if none has, or a file that it names has changed since."""
    entry = user_cache.kept(_KIND, str(path.absolute()), text) if _is_kept(text, overrides) else None
    return None if entry is None else _of_entry(path, text, overrides, entry)


def _of_entry(path: Path, text: str, overrides: Mapping[str, str], entry: Any) -> _ParsedFile | None:
    """The file of which ``entry`` has the values; None if a file that it names has changed."""
    files = {Path(named): None if version is None else FileVersion(*version) for named, version in entry["files"]}
    if any(FileVersion.of(named) != version for named, version in files.items()):
        return None
    apart = deepcopy(entry["apart"])
    override(apart, str(path), overrides)
    rest = checked(Deployment, {**apart, "topics": []}, str(path))
    topics = _CheckedTopics(str(path), entry["topics"], rest.registries)
    return _ParsedFile(text, overrides, files, rest.model_copy(update={"topics": topics}))


def _iso(value: object) -> str:
    """A date as pydantic reads it from JSON. Raises TypeError for other objects."""
    if isinstance(value, date):
        return value.isoformat()
    raise TypeError(type(value).__name__)


_KIND: Final = "topics"
