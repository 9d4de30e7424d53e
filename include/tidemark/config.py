"""Configuration files: YAML, every key known, every error with its file, field, value and rule.

``TIDEMARK__SECTION__FIELD=value`` in the environment overrides ``section.field`` of the topics file, and
``TIDEMARK_AGENT__…`` the agent's; the value is read as YAML.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, NamedTuple, TypeVar, get_args, get_origin
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationError, ValidationInfo
from pydantic_core import ErrorDetails

from tidemark.errors import ConfigError

ENVIRONMENT_PREFIX = "TIDEMARK__"

ALTERNATIVE = "alternative of Tidemark's: "
"""Prefix of the tags of a field's alternatives. Tags are no part of a file, so no error names them."""

_DIRECTORY = "directory"
_NAMED = "named"
_FILES = "files"
_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_LIKE: Final = 0.8
"""Similarity of two names above which one may be a slip of the other: west is no slip of east."""

_SHOWN: Final = 20
"""Most known names that a message lists."""

_LONGEST = timedelta(days=36_500)
"""Beyond a century, the sum of a date and a length of time may not be a valid date."""
_SIZES = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}

DURATION: Final = r"(\d+(?:\.\d+)?)(ms|s|m|h|d)"
"""The pattern of a length of time: a number and its unit."""

_NO_MAPPING: Final = {"model_type", "model_attributes_type", "dict_type"}
"""pydantic's error types for a value that is no mapping."""

_USER_INFO = re.compile(r"//[^/@]*@")
_SECRET = re.compile(
    r"(?i)password|passwd|secret|token|credential|(access|account|api|private|sas|session)_?key(?!_?id)"
)

Model = TypeVar("Model", bound=BaseModel)


class Settings(BaseModel):
    """Base of all configuration: unknown keys are errors, values are immutable, wrong types are not coerced.

    A key that an earlier version knew stays in ``removed``, with what takes its place. An error about it says
    "``<key>`` is no longer a setting: ``<what takes its place>``". A key of a section that is no field any more is
    written ``section.key``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    removed: ClassVar[Mapping[str, str]] = {}

    def digest_of(self, *names: str) -> str:
        """The identity of the settings ``names``, or of all: 16 hexadecimal digits.

        Only what differs from the defaults is in it, so a setting that a later version adds changes no digest.
        """
        set_apart = self.model_dump(mode="json", by_alias=True, include={*names} or None, exclude_defaults=True)
        return hashlib.sha256(json.dumps(set_apart, sort_keys=True).encode()).hexdigest()[:16]


def _duration(value: object) -> object:
    if isinstance(value, timedelta):
        return value
    match = re.fullmatch(DURATION, value) if isinstance(value, str) else None
    if not match:
        raise ValueError("must be a number with a unit, such as 500ms, 30s, 10m, 1h or 2d")
    if float(match[1]) * timedelta(**{_UNITS[match[2]]: 1}).total_seconds() > _LONGEST.total_seconds():
        raise ValueError(f"must be at most {_LONGEST.days}d")
    return timedelta(**{_UNITS[match[2]]: float(match[1])})


def _share(value: object) -> object:
    if isinstance(value, float) and 0 <= value <= 1:
        return value
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", value) if isinstance(value, str) else None
    if not match or float(match[1]) > 100:
        raise ValueError("must be a percentage, such as 0.1%")
    return float(match[1]) / 100


def _size(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = re.fullmatch(r"(\d+)\s*(B|KiB|MiB|GiB|TiB|)", value) if isinstance(value, str) else None
    if not match:
        raise ValueError("must be bytes or a number with a unit, such as 64MiB")
    return int(match[1]) * _SIZES[match[2]]


Duration = Annotated[
    timedelta, BeforeValidator(_duration), PlainSerializer(lambda value: f"{value / timedelta(milliseconds=1):.0f}ms")
]
"""A length of time, written ``500ms``, ``30s``, ``10m``, ``1h``, ``2d``."""

Share = Annotated[float, BeforeValidator(_share)]
"""A part of a whole, written ``1%`` or ``0.1%``; 0 to 1 as a number."""

Size = Annotated[int, BeforeValidator(_size)]
"""A number of bytes, written ``1048576`` or ``1MiB``."""


ObjectName = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
"""A function or class from outside Tidemark, written ``module:name``."""


def imported(name: str) -> Any:
    """The function or class that an :data:`ObjectName` names. Raises ConfigError if it cannot be imported."""
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError("the configuration", [(name, f"names nothing that can be imported: {error}")]) from error


def http_url(url: str) -> str:
    """``url`` if a host and a port can be taken from it. Raises ValueError."""
    try:
        parts = urlsplit(url)
        if parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0:
            return url
    except ValueError:
        pass
    raise ValueError("must be a URL such as https://host.example.com:9000")


def hint(name: str, known: Iterable[str]) -> str:
    """The known name that ``name`` resembles, or else the list of all names, as a hint."""
    names = sorted({*known})
    if near := get_close_matches(name, names, n=1, cutoff=_LIKE):
        return f"did you mean {near[0]}?"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    verb = "is" if len(names) == 1 else "are"
    return f"there {verb} {', '.join(names[:_SHOWN])}{more}" if names else "there are none"


def is_secret(name: str) -> bool:
    """True if a setting or variable with this name holds a secret, judged by the name alone."""
    return _SECRET.search(name) is not None


class _Strict(yaml.constructor.SafeConstructor):
    """Makes the values of YAML's safe loader, but a key that appears twice is an error.

    Scalars that look like a date, a number or a tag's type but are not valid are YAML errors with their place.
    """

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """See :class:`yaml.constructor.BaseConstructor`."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, KeyError, AttributeError) as error:
            kind = node.tag.rpartition(":")[2]
            raise yaml.constructor.ConstructorError(
                None, None, f"this is not a valid {kind}", node.start_mark
            ) from error


def _construct_mapping(loader: Any, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[object] = set()
    for key_node, _ in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            raise yaml.constructor.ConstructorError(None, None, "a key must be a single word", key_node.start_mark)
        key = loader.construct_object(key_node)
        if key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} appears twice", key_node.start_mark)
        seen.add(key)
    made: dict[Any, Any] = loader.construct_mapping(node)
    return made


_Strict.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _construct_mapping)


class _StrictLoader(_Strict, yaml.SafeLoader):
    """In Python."""


def _loaded(text: str) -> Any:
    """The values in YAML ``text``. Raises yaml.YAMLError; RecursionError if it is nested too deeply.

    libyaml's parser takes a fifth of the time, where PyYAML has it. What it refuses is left to the parser in Python,
    for the words of the error. So are tabs, for which it is more lenient, and what is nested deeply.
    """
    if yaml.__with_libyaml__ and "\t" not in text:
        with suppress(yaml.YAMLError, RecursionError):
            return yaml.load(text, Loader=_libyaml_loader())  # noqa: S506 - derives from SafeConstructor
    return yaml.load(text, Loader=_StrictLoader)  # noqa: S506 - likewise


_DEEPEST: Final = 100
"""The most levels that are left to libyaml's parser: several times those of any configuration."""


@cache
def _libyaml_loader() -> type[yaml.CSafeLoader]:
    """The loader with libyaml's parser, which only some builds of PyYAML have."""

    class LibyamlLoader(_Strict, yaml.CSafeLoader):
        """Raises RecursionError before the text is so deep that its recursion, which is in C, ends the process."""

        level = 0

        def descend_resolver(self, current_node: Any, current_index: Any) -> None:
            """Enter a node, on the way to its parts."""
            self.level += 1
            if self.level > _DEEPEST:
                raise RecursionError

        def ascend_resolver(self) -> None:
            """Leave the node."""
            self.level -= 1

    return LibyamlLoader


def load(
    model: type[Model], path: Path, environment: Mapping[str, str] = os.environ, *, prefix: str = ENVIRONMENT_PREFIX
) -> Model:
    """Read ``path`` as a ``model``. Variables of the environment that begin with ``prefix`` override values.

    Raises:
        ConfigError: the file is missing, is not a YAML mapping, or breaks a rule; names file, field and rule.
    """
    return parse(model, text_of(path), str(path), environment, prefix=prefix)


def text_of(path: Path) -> str:
    """The text of a configuration file. Raises ConfigError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), [("", f"cannot be read: {error}")]) from error


def parse(
    model: type[Model],
    text: str,
    source: str,
    environment: Mapping[str, str] = os.environ,
    *,
    prefix: str = ENVIRONMENT_PREFIX,
) -> Model:
    """Read YAML ``text`` as a ``model``; ``source`` names it in errors. Raises like :func:`load`."""
    value = mapping_in(text, source)
    override(value, source, environment, prefix)
    return checked(model, value, source)


def mapping_in(text: str, source: str) -> dict[str, Any]:
    """The plain values in YAML ``text``. Raises ConfigError if it is not YAML, or no mapping."""
    value = _yaml(text, source, "")
    if not isinstance(value, dict):
        raise ConfigError(source, [("", "must be a mapping of keys to values")])
    return value


def checked(
    model: type[Model],
    value: Mapping[str, Any],
    source: str,
    *,
    named: Mapping[str, Any] | None = None,
    files: dict[Path, FileVersion | None] | None = None,
) -> Model:
    """Plain values as a ``model``; ``source`` as for :func:`parse`, ``named`` as :func:`named_in`.

    Files and directories that the values name and that are read, too, are added to ``files`` with their versions.

    Raises:
        ConfigError: a value breaks a rule.
    """
    context = {_DIRECTORY: Path(source).parent, _NAMED: {**(named or {})}, _FILES: files}
    try:
        return model.model_validate(value, context=context)
    except ValidationError as error:
        problems = [problem for item in error.errors() for problem in _problems(item, model)]
        raise ConfigError(source, grouped(problems, value)) from None


def content_of(path: Path) -> object:
    """The plain values of the file ``path``, which was loaded."""
    return _yaml(path.read_text(encoding="utf-8"), str(path), "")


def grouped(problems: Iterable[tuple[str, str]], content: object) -> list[tuple[str, str]]:
    """``problems`` of a file with this ``content``: topics are named, where pydantic counts them.

    One that several topics have is one, with their number: a mistake in ``defaults``. Beyond a hundred, the others are
    only counted.
    """
    known = content if isinstance(content, Mapping) else {}
    defaults, names = known.get("defaults"), _names(known)
    shared: dict[tuple[str, str], list[str]] = {}
    for field, rule in problems:
        match = _OF_TOPIC.fullmatch(field)
        shared.setdefault((match[2] or "", rule) if match else (field, rule), []).append(field)
    found = []
    for (rest, rule), fields in shared.items():
        stated = isinstance(defaults, Mapping) and rest.partition(".")[0] in defaults
        place = f"defaults.{rest}" if len(fields) > 1 and stated else _named(fields[0], names)
        found.append((place, f"{rule} (in {len(fields):,} topics)" if len(fields) > 1 else rule))
    if len(found) > _TOLD:
        return [*found[:_TOLD], ("", f"has {len(found) - _TOLD:,} more problems; correct these first")]
    return found


_TOLD: Final = 100
"""Most problems of a file that are told one by one."""

_OF_TOPIC: Final = re.compile(r"topics\.(\d+)(?:\.(.+))?")


def _names(content: Mapping[str, Any]) -> dict[str, str]:
    """The names of a file's topics by their number: with the cluster, if another topic has the name as well."""
    topics = content.get("topics")
    items = {str(at): item for at, item in enumerate(topics)} if isinstance(topics, list) else {}
    named = {at: item for at, item in items.items() if isinstance(item, dict) and isinstance(item.get("topic"), str)}
    counts = Counter(item["topic"] for item in named.values())
    return {
        at: item["topic"]
        if counts[item["topic"]] == 1
        else f"{item.get('cluster', content.get('cluster'))}/{item['topic']}"
        for at, item in named.items()
    }


def _named(field: str, names: Mapping[str, str]) -> str:
    match = _OF_TOPIC.fullmatch(field)
    return field if match is None else ".".join(["topics", names.get(match[1], match[1]), *filter(None, [match[2]])])


def _yaml(text: str, source: str, field: str) -> Any:
    try:
        return _loaded(text)
    except yaml.YAMLError as error:
        raise ConfigError(source, [(field, f"is not valid YAML: {_where(error)}")]) from None
    except RecursionError:
        raise ConfigError(source, [(field, "is not valid YAML: it is nested too deeply")]) from None


def _where(error: yaml.YAMLError) -> str:
    """The place and kind of an error, without the line itself: it may hold a password."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
        return f"line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1}: {error.problem}"
    return "it cannot be read as text"


class FileVersion(NamedTuple):
    """What differs once a file, or the list of a directory's files, has changed."""

    device: int
    inode: int
    modified_ns: int
    size: int

    @classmethod
    def of(cls, path: Path) -> FileVersion | None:
        """The present version of ``path``; None if there is none."""
        try:
            status = path.stat()
        except OSError:
            return None
        return cls(status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)


def will_read(path: Path, info: ValidationInfo) -> Path:
    """``path``, which the validated file names, noted among the files of :func:`checked` before it is read."""
    files = (info.context or {}).get(_FILES)
    if files is not None:
        files.setdefault(path, FileVersion.of(path))
    return path


def directory_of(info: ValidationInfo) -> Path:
    """The folder of the validated file, which relative paths start from; the current directory for mere text."""
    directory = (info.context or {}).get(_DIRECTORY)
    return directory if isinstance(directory, Path) else Path()


def named_in(info: ValidationInfo) -> dict[str, Any]:
    """What a section of the validated file has named, for the sections after it to refer to; empty for mere values."""
    named: dict[str, Any] = (info.context or {}).get(_NAMED, {})
    return named


def _problems(item: ErrorDetails, model: type[BaseModel]) -> list[tuple[str, str]]:
    """(field, rule) of an error; of each removed key in a section that is unknown as a whole."""
    field = ".".join(str(part) for part in item["loc"] if not str(part).startswith(ALTERNATIVE))
    if item["type"] == "extra_forbidden":
        removed = [(name, successor(model, name)) for name in _keys(field, item["input"])]
        if found := [(name, f"is no longer a setting: {instead}") for name, instead in removed if instead]:
            return found
    return [_problem(item, field, model)]


def _problem(item: ErrorDetails, field: str, model: type[BaseModel]) -> tuple[str, str]:
    """(field, rule) of an error."""
    if item["type"] == "missing":
        return field, "is required"
    if item["type"] == "extra_forbidden":
        near = get_close_matches(str(item["loc"][-1]), sorted(_fields(model, set())), n=1)
        return field, f"is not a known key; {f'did you mean {near[0]}?' if near else 'see the documentation for those'}"
    if item["type"] == "union_tag_invalid":
        known = item["ctx"]["expected_tags"].replace("'", "").split(", ")
        return (
            f"{field}.{_discriminator(item)}",
            f"{item['ctx']['tag']} is not known; {hint(item['ctx']['tag'], known)}",
        )
    if item["type"] == "union_tag_not_found":
        return f"{field}.{_discriminator(item)}", "is required"
    rule = "must be a mapping of keys to values" if item["type"] in _NO_MAPPING else item["msg"]
    rule = rule.removeprefix("Value error, ").replace("Input should be", "must be").replace("String should", "must")
    told = isinstance(item["input"], str) and repr(item["input"]) in rule
    return field, rule if told else f"{rule}{_quoted(field, item['input'])}"


def _discriminator(item: ErrorDetails) -> str:
    """The key that selects the kind of a section."""
    return str(item["ctx"]["discriminator"]).strip("'")


def _fields(kind: Any, seen: set[Any]) -> set[str]:
    """The names of all fields of a model, and of the models within."""
    names: set[str] = set()
    if isinstance(kind, type) and issubclass(kind, BaseModel) and kind not in seen:
        seen.add(kind)
        for name, field in kind.model_fields.items():
            names |= {field.alias or name} | _fields(field.annotation, seen)
    for part in get_args(kind):
        names |= _fields(part, seen)
    return names


def successor(model: type[BaseModel], key: str) -> str | None:
    """What takes the place of a removed ``key``, written with dots between its parts; None if it was never known."""
    return next((instead for pattern, instead in _removed_from(model) if pattern.fullmatch(key)), None)


@cache
def _removed_from(model: type[BaseModel]) -> list[tuple[re.Pattern[str], str]]:
    return [(re.compile(key), instead) for key, instead in _removed(model, "", frozenset())]


def _removed(kind: Any, path: str, within: frozenset[Any]) -> Iterator[tuple[str, str]]:
    """The removed keys of a model, and of the models within: (pattern of the whole key, what takes its place)."""
    if isinstance(kind, type) and issubclass(kind, BaseModel) and kind not in within:
        if issubclass(kind, Settings):
            yield from ((path + re.escape(key), instead) for key, instead in kind.removed.items())
        for name, field in kind.model_fields.items():
            yield from _removed(field.annotation, rf"{path}{re.escape(field.alias or name)}\.", within | {kind})
    below = rf"{path}.+\." if get_origin(kind) in {dict, list, tuple, Sequence} else path
    for part in get_args(kind):
        yield from _removed(part, below, within)


def _keys(field: str, value: object) -> Iterator[str]:
    """The key of a value, and of everything within it."""
    yield field
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _keys(f"{field}.{name}", part)


def _quoted(field: str, value: object) -> str:
    """The value that breaks a rule, or nothing if the value is or may contain a secret."""
    if is_secret(field) or not isinstance(value, (str, int, float, bool)):
        return ""
    return f", but it is {_USER_INFO.sub('//***@', repr(value))}"


def override(
    value: dict[str, Any], source: str, environment: Mapping[str, str], prefix: str = ENVIRONMENT_PREFIX
) -> None:
    """Put the values of variables that begin with ``prefix`` into ``value``. Raises ConfigError."""
    for name, text in sorted(environment.items()):
        if not name.startswith(prefix):
            continue
        *parents, last = name.removeprefix(prefix).lower().split("__")
        target = value
        for part in parents:
            target = target.setdefault(part, {})
            if not isinstance(target, dict):
                raise ConfigError(source, [(name, f"{part} is not a section, so nothing below it can be set")])
        target[last] = _yaml(text, source, name)
