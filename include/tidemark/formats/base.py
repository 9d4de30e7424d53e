"""The base of every JSON object in the store: versioned, immutable, with canonical bytes and errors that name the key.

An object states its ``format``. A reader reads its own and each earlier released format, and refuses a later one with
:class:`~tidemark.errors.LaterFormat`. Within a format, readers ignore fields that they do not know, so that a newer
agent and an older job can share a store. See docs/compatibility.md for the rules.

Times are UTC, offsets are integers, and ``[start, end)`` is half-open.

Any bytes under a key give an object or a FormatError when they are read, within a limit of memory: an object is not
read beyond the size that its kind may have, numbers have at most 64 bits, and the first wrong item of a list ends its
check.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Literal, NamedTuple, Self, TypeVar, cast, get_args

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetPydanticSchema, ValidationError
from pydantic_core import CoreSchema, from_json

from tidemark.errors import FormatError, LaterFormat, NotFound
from tidemark.formats import object_sizes
from tidemark.installation import VERSION

if TYPE_CHECKING:
    from tidemark.store import Store

Object = TypeVar("Object")

_MOST_PROBLEMS: Final = 5
"""Most problems that the error of an object names."""

_LEAST, _MOST = -(1 << 63), (1 << 63) - 1

_VERSION: Final = re.compile(r"[0-9]{1,4}(?:\.[0-9]{1,4}){0,2}")


def _limited(schema: Any) -> Any:
    """``schema`` (pydantic's ``core_schema``) with limits for integers and lists."""
    if isinstance(schema, list | tuple):
        return type(schema)(map(_limited, schema))
    if not isinstance(schema, dict):
        return schema
    limited = {name: value if name == "metadata" else _limited(value) for name, value in schema.items()}
    if limited.get("type") == "int":
        limited = {"ge": _LEAST, "le": _MOST, **limited}
    elif limited.get("type") in {"list", "tuple"}:
        limited["fail_fast"] = True
    return limited


class Model(BaseModel):
    """A piece of a stored object: immutable, tolerant of unknown fields. Numbers have 64 bits."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True, allow_inf_nan=False)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """The schema, with limits for all integers and lists."""
        limited: CoreSchema = _limited(handler(source))
        return limited


def _as_model(source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
    schema = dict(_limited(handler.resolve_ref_schema(handler(source))))
    schema.pop("ref", None)  # a copy of its own: the type is without limits elsewhere
    return cast("CoreSchema", schema)


AS_MODEL: Final = GetPydanticSchema(_as_model)
"""Annotates a dataclass of a lower layer that is a piece of a stored object: it is read and written as a Model is."""


class Versioned(Model):
    """A piece of the store that states its format. The type of ``format`` lists the formats that this version reads."""

    format: Literal[1] = 1

    @classmethod
    def newest_format(cls) -> int:
        """The highest format that this version reads."""
        formats: tuple[int, ...] = get_args(cls.model_fields["format"].annotation)
        return max(formats)

    @classmethod
    def refuse_later(cls, fields: object, key: str) -> None:
        """Raise LaterFormat if ``fields``, the plain values of the object under ``key``, state a later format."""
        if isinstance(fields, dict):
            check_format(key, cls.__name__, fields.get("format"), cls.newest_format(), fields.get("needs"))

    @classmethod
    def from_bytes(cls, body: bytes, key: str) -> Self:
        """Parse ``body``. Raises FormatError naming ``key``, the field and the rule that it breaks, or LaterFormat."""
        try:
            return cls.model_validate_json(body)
        except ValidationError as error:
            problems = describe(error)
        cls.refuse_later(_plain(body), key)
        raise FormatError(key, problems)


class StoredObject(Versioned):
    """One JSON object in the store."""

    most_bytes: ClassVar[int] = object_sizes.SMALL
    """A larger object is not read; see :mod:`tidemark.formats.object_sizes`."""

    def to_bytes(self) -> bytes:
        """Canonical JSON (sorted keys, no spaces, UTF-8): the same object gives the same bytes."""
        return canonical(self.model_dump(mode="json", by_alias=True))

    @classmethod
    def load(cls, store: Store, key: str, *, if_match: str | None = None) -> Self:
        """The object under ``key``.

        Raises:
            NotFound: there is no such object.
            FormatError: it is larger than an object of its kind may be, or does not parse.
            StoreError: the store failed.
        """
        return cls.load_version(store, key, if_match=if_match).value

    @classmethod
    def load_version(cls, store: Store, key: str, *, if_match: str | None = None) -> Version[Self]:
        """The object under ``key`` with its ETag; raises the errors of :meth:`load`."""
        body, etag = store.get(key, if_match=if_match, limit=cls.most_bytes)
        return Version(cls.from_bytes(body, key), etag)

    @classmethod
    def load_or_none(cls, store: Store, key: str) -> Self | None:
        """The object under ``key``, None if there is none; raises the other errors of :meth:`load`."""
        version = cls.load_version_or_none(store, key)
        return version.value if version is not None else None

    @classmethod
    def load_version_or_none(cls, store: Store, key: str) -> Version[Self] | None:
        """The object under ``key`` with its ETag, None if there is none; raises the other errors of :meth:`load`."""
        try:
            return cls.load_version(store, key)
        except NotFound:
            return None

    @classmethod
    def load_to_replace(cls, store: Store, key: str) -> tuple[Self | FormatError | None, str | None]:
        """The object under ``key`` and its ETag, for a writer that replaces it even if it is damaged.

        It is the error of a damaged one, and None without one. Raises LaterFormat, since such an object is whole, and
        StoreError.
        """
        try:
            body, etag = store.get(key, limit=cls.most_bytes)
        except NotFound:
            return None, None
        except FormatError as error:  # it is too large
            return error, store.head(key).etag
        try:
            return cls.from_bytes(body, key), etag
        except LaterFormat:
            raise
        except FormatError as error:
            return error, etag


class Version(NamedTuple, Generic[Object]):
    """An object, and the ETag of this version."""

    value: Object
    etag: str


def check_format(key: str, kind: str, stated: object, newest: int, needs: object = None) -> None:
    """Raise LaterFormat if ``stated`` is a later format of ``kind`` than ``newest``, the last one known here.

    ``needs`` is the version that reads the object, as its writer gives it.
    """
    if not isinstance(stated, int) or stated <= newest:
        return
    known = isinstance(needs, str) and _VERSION.fullmatch(needs)
    remedy = f"install Tidemark {needs} or newer" if known else "install the version that wrote it, or a newer one"
    reads = f"Tidemark {VERSION} reads formats up to {newest}"
    raise LaterFormat(key, f"has format {stated} of {kind}, and {reads}: {remedy}")


def _plain(body: bytes) -> Any:
    """The plain values of a JSON object; None if it is none."""
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError:
        return None


def parse_json(body: bytes, key: str) -> Any:
    """The plain values of a JSON object. Raises FormatError, also for values that are nested too deeply."""
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise FormatError(key, f"object: Invalid JSON: {error}") from error


def canonical(value: object) -> bytes:
    """The canonical JSON of plain values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def canonical_list(fields: Mapping[str, object], name: str, items: Iterable[object]) -> bytes:
    """The canonical JSON of ``fields`` and, under ``name``, of ``items``, which may be an iterator."""
    return joined_list(fields, name, map(canonical, items))


def joined_list(fields: Mapping[str, object], name: str, items: Iterable[bytes]) -> bytes:
    """The result of :func:`canonical_list` for items that are canonical JSON already."""
    begin = f'"{name}":['.encode()
    before, _, after = canonical({**fields, name: []}).partition(begin)
    return b"".join([before, begin, b",".join(items), after])


def describe(error: ValidationError) -> str:
    """The first five problems of ``error`` as ``field: rule``, joined by ``; ``, and the number of the others."""
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    shown = [
        f"{'.'.join(str(part) for part in item['loc']) or 'object'}: {item['msg']}"
        for item in problems[:_MOST_PROBLEMS]
    ]
    return "; ".join([*shown, *([f"and {len(problems) - len(shown)} more"] if len(problems) > len(shown) else [])])
