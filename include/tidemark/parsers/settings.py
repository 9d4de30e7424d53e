"""Settings of a topic's parser in a topics file. Files that they name are read here, once, and travel with them."""

from __future__ import annotations

import hashlib
import importlib
import json
import re
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Final, Literal, NamedTuple, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    PlainSerializer,
    Tag,
    TypeAdapter,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from tidemark.config import ALTERNATIVE, Settings, directory_of, hint, http_url, named_in, will_read
from tidemark.formats.table.base_columns import PREFIX

_SIMPLE: Final = (
    *("boolean", "int8", "int16", "int32", "int64", "float", "double"),
    *("string", "binary", "date", "json"),
)
_DECIMAL: Final = re.compile(r"decimal\((\d{1,2}), ?(\d{1,2})\)")
_TIMESTAMP: Final = re.compile(r"timestamp\((s|ms|us|ns|iso8601)\)")
_LIST: Final = re.compile(r"list<(.+)>")

KNOWN: Final = f"{', '.join(_SIMPLE)}, decimal(p,s), timestamp(s|ms|us|ns|iso8601), list<...>"


class ColumnType(NamedTuple):
    """A parsed type. ``unit`` is a timestamp's, ``precision`` and ``scale`` a decimal's, ``element`` a list's."""

    name: str
    unit: str = ""
    precision: int = 0
    scale: int = 0
    element: ColumnType | None = None

    @property
    def leaf(self) -> ColumnType:
        """The innermost element of a list of lists; the type itself if it is no list."""
        return self.element.leaf if self.element else self


def column_type(text: str) -> ColumnType:
    """The type named ``text``. Raises ValueError: there is no such type."""
    if text in _SIMPLE:
        return ColumnType(text)
    if match := _DECIMAL.fullmatch(text):
        precision, scale = int(match[1]), int(match[2])
        if not 1 <= precision <= 38 or scale > precision:
            raise ValueError("a decimal has 1 to 38 digits, of which those behind the point are a part")
        return ColumnType("decimal", precision=precision, scale=scale)
    if match := _TIMESTAMP.fullmatch(text):
        return ColumnType("timestamp", unit=match[1])
    if match := _LIST.fullmatch(text):
        return ColumnType("list", element=column_type(match[1]))
    raise ValueError(f"must be one of {KNOWN}")


FORBIDDEN: Final = " ,;{}()\n\t="
"""Characters that Delta forbids in the name of a column."""

MAX_SCHEMA_BYTES: Final = 16 << 20
MAX_SCHEMAS: Final = 10_000

Source = Literal["value", "key"]
Framing = Literal["none", "confluent"]
Misfits = Literal["quarantine", "land"]
"""The fate of a record with a field that its column cannot hold: it is refused, or the column is null."""


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """A file that settings name: its path as they name it, and its content when they were read."""

    path: str
    data: bytes

    @property
    def sha256(self) -> str:
        """The digest of the file's content, wherever the file lay."""
        return hashlib.sha256(self.data).hexdigest()


def check_names(names: Iterable[str]) -> None:
    """Raise ValueError unless all ``names`` may stand as columns beside Kafka's own."""
    names = list(names)
    check_struct(names, "column")
    for name in names:
        folded = name.casefold()
        if folded == "dt":
            raise ValueError(f"column {name!r}: dt is the table's own partition column")
        if folded.startswith(PREFIX):
            raise ValueError(f"column {name!r}: the prefix kafka_ is reserved for Kafka's own columns")


def check_struct(names: Iterable[str], what: str = "field") -> None:
    """Raise ValueError unless ``names`` may stand beside each other, as columns or within a struct."""
    seen: dict[str, str] = {}
    for name in names:
        folded = name.casefold()
        wrong = sorted({char for char in name if char in FORBIDDEN})
        if not name or wrong:
            raise ValueError(f"{what} {name!r}: Delta forbids {wrong or 'empty names'} in the name of a column")
        if folded in seen:
            raise ValueError(f"{what} {name!r}: appears twice: engines do not distinguish {seen[folded]} and {name}")
        seen[folded] = name


def _read(value: object, info: ValidationInfo) -> object:
    if isinstance(value, SettingsFile):
        return value
    if not isinstance(value, str) or not value:
        raise ValueError("must be the path of a file")
    return _content(will_read(directory_of(info) / value, info), value)


def _read_directory(value: object, info: ValidationInfo) -> object:
    if not isinstance(value, str) or not value:
        raise ValueError("must be the path of a directory with files <id>.avsc")
    folder = will_read(directory_of(info) / value, info)
    paths = sorted(folder.glob("*.avsc")) if folder.is_dir() else []
    if not paths or len(paths) > MAX_SCHEMAS:
        raise ValueError(f"{folder} must be a directory with 1 to {MAX_SCHEMAS} files <id>.avsc")
    files: dict[int, SettingsFile] = {}
    for path in paths:
        if not (path.stem.isascii() and path.stem.isdigit()) or str(int(path.stem)) != path.stem:
            raise ValueError(f"{path} must be named by a schema's number, such as 7.avsc")
        files[int(path.stem)] = _content(will_read(path, info), str(PurePosixPath(value) / path.name))
    return files


def _content(path: Path, name: str) -> SettingsFile:
    try:
        if path.stat().st_size > MAX_SCHEMA_BYTES:
            raise ValueError(f"{path} has more than {MAX_SCHEMA_BYTES} bytes")
        return SettingsFile(name, path.read_bytes())
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


def _json_content(content: SettingsFile) -> SettingsFile:
    try:
        json.loads(content.data)
    except RecursionError as error:
        raise ValueError(f"{content.path} is nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"{content.path} is not valid JSON: {error}") from error
    return content


def _digest(content: SettingsFile) -> str:
    return content.sha256


def _digests(contents: Mapping[int, SettingsFile]) -> dict[int, str]:
    return {number: content.sha256 for number, content in contents.items()}


_PATH: Final[Any] = {"type": "string", "format": "path"}

File = Annotated[SettingsFile, BeforeValidator(_read), PlainSerializer(_digest), WithJsonSchema(_PATH)]
"""The path of a file, from the topics file's own directory."""

JsonFile = Annotated[File, AfterValidator(_json_content)]

Directory = Annotated[
    dict[int, SettingsFile], BeforeValidator(_read_directory), PlainSerializer(_digests), WithJsonSchema(_PATH)
]
"""The path of a directory with files ``<id>.avsc``."""


class EventTime(Settings):
    """The parser's column that makes ``dt``: a timestamp, a date, or a whole number of ``unit`` since 1970."""

    field: str = Field(min_length=1)
    unit: Literal["s", "ms", "us", "ns"] | None = None


class Column(Settings):
    """A column that a parser declares."""

    name: str
    type: str
    required: bool = False

    @field_validator("type")
    @classmethod
    def _check_type(cls, text: str) -> str:
        column_type(text)
        return text

    @property
    def parsed_type(self) -> ColumnType:
        """The type, parsed."""
        return column_type(self.type)


class JsonColumn(Column):
    """A column, and its place in a document: ``a.b.c``, or a list of keys that may have points in them."""

    path: str | tuple[str, ...] | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys from the document's top to the value."""
        if isinstance(self.path, tuple):
            return self.path
        return tuple(self.path.split(".")) if self.path else (self.name,)


class _Parser(Settings):
    columns_from: Source = "value"
    event_time: EventTime | None = None


def _check_declared(declared: tuple[Column, ...], event_time: EventTime | None) -> None:
    """Check columns that the topics file declares. Raises ValueError."""
    if not declared:
        raise ValueError("columns: at least one is needed; the parser for none is bytes")
    columns = {column.name: column.parsed_type for column in declared}
    check_names(column.name for column in declared)
    if event_time is None:
        return
    kind = columns.get(event_time.field)
    if kind is None:
        raise ValueError(f"event_time.field: {event_time.field} is not one of the columns {', '.join(columns)}")
    if kind.name.startswith("int"):
        if event_time.unit is None:
            raise ValueError(f"event_time.unit: {event_time.field} is a number, so its unit is needed")
    elif kind.name not in {"timestamp", "date"}:
        raise ValueError(f"event_time.field: {event_time.field} is neither a time nor a whole number")
    elif event_time.unit is not None:
        raise ValueError(f"event_time.unit: {event_time.field} has the type of a time, which states its unit")


class BytesParser(Settings):
    """Keys, values and headers as they are: no column beyond Kafka's own."""

    kind: Literal["bytes"] = "bytes"

    @property
    def event_time(self) -> EventTime | None:
        """None: a record's date is that of its timestamp."""
        return None


def _certificates(content: SettingsFile) -> SettingsFile:
    try:
        ssl.create_default_context(cadata=content.data.decode("ascii"))
    except (ValueError, ssl.SSLError) as error:
        raise ValueError(f"{content.path} must hold certificates in PEM: {error}") from error
    return content


CertificateFile = Annotated[File, AfterValidator(_certificates)]


class Registry(Settings):
    """A registry of schemas by their number, with the API of Confluent's registry.

    Secrets are not settings: ``basic`` and ``bearer`` take them from the environment of the tasks, from
    ``<variables>_USER`` and ``<variables>_PASSWORD``, or ``<variables>_TOKEN``. ``connection`` names an Airflow
    connection instead, with login and password, or with a token as its password. No row depends on the way to the
    registry, or on its name in the file, so only ``url`` is part of the configuration's digest.
    """

    url: str = Field(pattern=r"^https?://[^/@?#\s]+(/[^@?#\s]*)?$")
    auth: Literal["none", "basic", "bearer"] = Field(default="none", exclude=True)
    variables: str = Field(default="TIDEMARK_REGISTRY", pattern=r"^TIDEMARK_REGISTRY(_[A-Z0-9]+)*$", exclude=True)
    connection: str | None = Field(default=None, min_length=1, exclude=True)
    ca_file: CertificateFile | None = Field(default=None, exclude=True)

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        return http_url(url)

    @model_validator(mode="after")
    def _check(self) -> Self:
        scheme, _, rest = self.url.partition("://")
        if scheme == "http" and self.ca_file:
            raise ValueError("ca_file is for https")
        host = rest.partition("/")[0].rpartition(":")[0] or rest.partition("/")[0]
        if self.connection and self.auth != "none":
            raise ValueError("auth is for variables of the environment; leave it out beside connection")
        has_secret = self.connection is not None or self.auth != "none"
        if scheme == "http" and has_secret and host not in {"127.0.0.1", "[::1]", "localhost"}:
            raise ValueError("auth and connection need https, as http would show the secret to who listens")
        return self


def _registry_named(value: object, info: ValidationInfo) -> object:
    if isinstance(value, Registry):
        return value
    if not isinstance(value, str):
        rule = "must be the name of one of the file's `registries`, where its url and the other keys belong"
        raise ValueError(rule)  # noqa: TRY004 - pydantic takes it for a broken rule
    known = named_in(info)
    if value not in known:
        raise ValueError(f"{value} is not one of the file's `registries`; {hint(value, known)}")
    return known[value]


NamedRegistry = Annotated[Registry, BeforeValidator(_registry_named), WithJsonSchema({"type": "string"})]
"""One of the topics file's ``registries``, by its name; see :func:`tidemark.config.named_in`."""


class RegistrySchema(Settings):
    """The columns follow the newest schema that ``registry`` has under ``subject``."""

    registry: NamedRegistry
    subject: str = Field(min_length=1, max_length=1000)

    @field_validator("subject")
    @classmethod
    def _check_subject(cls, subject: str) -> str:
        if not subject.isprintable():
            raise ValueError("must be the name of a subject, such as orders-value")
        return subject


_FILE: Final = f"{ALTERNATIVE}file"
_REGISTRY: Final = f"{ALTERNATIVE}registry"


def _source(value: object) -> str:
    return _REGISTRY if isinstance(value, Mapping | RegistrySchema) else _FILE


class JsonParser(_Parser):
    """One JSON object a record."""

    kind: Literal["json"]
    columns: tuple[JsonColumn, ...] = ()
    followed: RegistrySchema | None = Field(default=None, alias="schema")
    framing: Framing = "none"
    misfits: Misfits = "quarantine"

    def adopting(self, definition: SettingsFile) -> JsonParser:
        """These settings with the columns in ``definition``, as JSON, instead of the registry's schema."""
        columns = TypeAdapter(tuple[JsonColumn, ...]).validate_json(definition.data)
        return self.model_copy(update={"columns": columns, "followed": None})

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.followed is not None:
            if self.columns:
                raise ValueError("has either columns or schema, with a registry and a subject")
            return self
        _check_declared(self.columns, self.event_time)
        paths: dict[tuple[str, ...], str] = {}
        for column in self.columns:
            if not column.keys:
                raise ValueError(f"column {column.name}: its path has no key")
            for other, name in paths.items():
                shorter = min(len(other), len(column.keys))
                if other[:shorter] == column.keys[:shorter]:
                    raise ValueError(
                        f"column {column.name}: its path is that of column {name}, or one is inside the other"
                    )
            paths[column.keys] = column.name
        return self


class AvroParser(_Parser):
    """Avro's binary encoding. ``schema`` is the table's: records of another schema are resolved into it."""

    kind: Literal["avro"]
    schema_file: Annotated[
        Annotated[JsonFile, Tag(_FILE)] | Annotated[RegistrySchema, Tag(_REGISTRY)], Discriminator(_source)
    ] = Field(alias="schema")
    framing: Framing = "none"
    misfits: Misfits = "quarantine"
    registry: NamedRegistry | None = None
    schemas: Directory | None = None

    @property
    def followed(self) -> RegistrySchema | None:
        """The registry's schema to follow; None if the schema is a file."""
        return self.schema_file if isinstance(self.schema_file, RegistrySchema) else None

    def adopting(self, definition: SettingsFile) -> AvroParser:
        """These settings with ``definition``, the schema of a record, instead of the registry's schema."""
        known = {"registry": self.followed.registry} if self.followed else {}
        return self.model_copy(update={"schema_file": definition, **known})

    @model_validator(mode="after")
    def _check(self) -> Self:
        sources = [source for source in (self.registry, self.schemas) if source is not None]
        if isinstance(self.schema_file, RegistrySchema):
            if self.framing == "none" or sources:
                raise ValueError("a schema of a registry needs framing: confluent, and names registry itself")
            return self
        if self.framing == "confluent" and len(sources) != 1:
            raise ValueError("framing confluent needs either registry, a name, or schemas, a directory of <id>.avsc")
        if self.framing == "none" and sources:
            raise ValueError("registry and schemas are for framing: confluent, whose records name their schema")
        document = json.loads(self.schema_file.data)
        fields = document.get("fields") if isinstance(document, dict) else None
        if not isinstance(fields, list) or document.get("type") != "record":
            raise ValueError(f"schema: {self.schema_file.path} must be the schema of a record")
        names = [field["name"] for field in fields if isinstance(field, dict) and isinstance(field.get("name"), str)]
        check_names(names)
        if self.event_time and self.event_time.field.split(".")[0] not in names:
            rule = f"{self.event_time.field} is not one of the columns {', '.join(names)}"
            raise ValueError(f"event_time.field: {rule}")
        return self


class ProtobufParser(_Parser):
    """Protobuf's wire format; ``descriptors`` is a file of ``protoc --include_imports --descriptor_set_out``."""

    kind: Literal["protobuf"]
    descriptors: File | None = None
    followed: RegistrySchema | None = Field(default=None, alias="schema")
    message: str = Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")
    framing: Framing = "none"
    misfits: Misfits = "quarantine"
    registry: NamedRegistry | None = None

    def adopting(self, definition: SettingsFile) -> ProtobufParser:
        """These settings with a descriptor set, instead of the registry's schema."""
        known = {"registry": self.followed.registry} if self.followed else {}
        return self.model_copy(update={"descriptors": definition, "followed": None, **known})

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.descriptors is None) == (self.followed is None):
            raise ValueError("needs either descriptors, a file, or schema, with a registry and a subject")
        if self.framing == "none" and (self.registry or self.followed):
            raise ValueError("a registry needs framing: confluent, whose records name their schema")
        if self.registry and self.followed:
            raise ValueError("schema names registry itself")
        return self


class FunctionParser(_Parser):
    """``module:function``, called with Arrow batches; ``version`` is its author's, changed with its behaviour."""

    kind: Literal["function"]
    function: str = Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
    version: str = Field(default="1", pattern=r"^[\w.+-]{1,64}$")
    columns: tuple[Column, ...]

    @model_validator(mode="after")
    def _check(self) -> Self:
        _check_declared(self.columns, self.event_time)
        return self

    def load(self) -> Any:
        """The function, imported. Raises ValueError if it cannot be imported."""
        module, _, name = self.function.partition(":")
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise ValueError(f"{self.function} cannot be imported: {error}") from error


ParserSettings = Annotated[
    BytesParser | JsonParser | AvroParser | ProtobufParser | FunctionParser, Discriminator("kind")
]
"""The settings of a topic's ``parser``, distinguished by ``kind``."""

FollowingParser = AvroParser | JsonParser | ProtobufParser
"""The parsers that can follow a schema of a registry."""


def followed_by(settings: ParserSettings) -> RegistrySchema | None:
    """The registry's schema that ``settings`` follow; None if they have a schema of their own, or need none."""
    return settings.followed if isinstance(settings, FollowingParser) else None


def registry_of(settings: ParserSettings) -> Registry | None:
    """The registry that a topic's parser asks; None if it asks none."""
    followed = followed_by(settings)
    if followed is not None:
        return followed.registry
    return settings.registry if isinstance(settings, AvroParser | ProtobufParser) else None
