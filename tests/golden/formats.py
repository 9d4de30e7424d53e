"""The formats of all stored objects as text: field by field, with a digest of each kind's schema.

``formats.json`` has the formats of this tree, and the ``formats.json`` of a released version those of that version,
which never change again. ``python -m tests.golden.formats`` writes the former.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import pkgutil
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, Final, get_args

import tidemark
import tidemark_spark
import uploader_agent
from tests.golden import HERE
from tests.golden.fields import fields_of
from tidemark.formats.base import StoredObject, Versioned, canonical
from tidemark.formats.raw import pack
from tidemark.table import evidence

PRESENT: Final = HERE / "formats.json"

NEW_NUMBER: Final = (
    "a version of before reads this field otherwise, so the kind needs a new number in `format`, which the version "
    "still reads beside the earlier ones: docs/compatibility.md, Rules"
)
OPTIONAL: Final = "a new field within a format needs a default, and older versions must be able to lose it"
GONE: Final = "objects of this kind stay in stores, so its model and its reader stay"

_PROSE: Final = {"title", "description"}
Format = Mapping[str, Any]
"""``format``, ``digest`` and ``fields`` of a kind: the fields by path, each with its type, rules and default."""


def formats() -> dict[str, Format]:
    """The format of each kind of object, by the kind's name."""
    return {
        **{kind.__name__: _of_model(kind) for kind in kinds()},
        "evidence": {
            "format": evidence.FORMAT,
            "fields": {
                field.name: f"{field.type}{' or null' if field.nullable else ''}" for field in evidence.schema()
            },
            "classes": sorted({*_literals(evidence.EvidenceClass)}),
        },
        "pack": {"format": pack._VERSION, "fields": {"trailer": f"{pack._MAGIC!r} {pack._TRAILER.format}"}},
    }


def kinds() -> list[type[Versioned]]:
    """All models of the packages that state a format, by name."""
    packages = (tidemark, tidemark_spark, uploader_agent)
    for package in packages:
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    names = {package.__name__ for package in packages}
    found = {kind for kind in _below(Versioned) if kind.__module__.partition(".")[0] in names} - {StoredObject}
    return sorted(found, key=lambda kind: kind.__name__)


def text(listed: Mapping[str, Format]) -> str:
    """The content of a ``formats.json``."""
    return json.dumps(listed, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def broken(released: Mapping[str, Format], present: Mapping[str, Format]) -> list[str]:
    """The changes from a ``released`` version that the rules forbid, each with its rule."""
    found: list[str] = []
    for kind, before in released.items():
        now = present.get(kind)
        if now is None:
            found.append(f"{kind}: is gone: {GONE}")
        elif now["format"] < before["format"]:
            found.append(f"{kind}: format {before['format']} is no longer read: {GONE}")
        elif now["format"] == before["format"]:
            found += _changes(kind, before, now)
    return found


def _changes(kind: str, before: Format, now: Format) -> Iterator[str]:
    fields, others = now["fields"], {name: now[name] for name in now.keys() - {"fields", "digest"}}
    for path, was in before["fields"].items():
        if fields.get(path) != was:
            yield f"{kind}: {path}: was `{was}`, and is `{fields.get(path, 'gone')}`: {NEW_NUMBER}"
    added = fields.keys() - before["fields"].keys()
    for path in sorted(added):
        if " = " not in fields[path] and not any(path.startswith((f"{of}.", f"{of}[", f"{of}{{")) for of in added):
            yield f"{kind}: {path}: is new, and is `{fields[path]}`: {OPTIONAL}"
    for name, value in others.items():
        if before.get(name) != value:
            yield f"{kind}: {name}: was {before.get(name)}, and is {value}: {NEW_NUMBER}"


def _of_model(kind: type[Versioned]) -> Format:
    schema = kind.model_json_schema()
    definitions = schema.pop("$defs", {})
    schema["properties"].pop("format")
    digest = hashlib.sha256(canonical(_without_prose([schema, definitions]))).hexdigest()[:16]
    fields = fields_of(schema, definitions)
    return {"format": kind.newest_format(), "digest": digest, "fields": fields}


def _without_prose(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_prose(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: _without_prose(value)
        for name, value in schema.items()
        if name not in _PROSE or not isinstance(value, str)
    }


def _below(kind: type[Versioned]) -> Iterator[type[Versioned]]:
    for sub in kind.__subclasses__():
        yield sub
        yield from _below(sub)


def _literals(union: Any) -> Iterator[str]:
    yield from chain.from_iterable(get_args(part) or (part,) for part in get_args(union))


if __name__ == "__main__":
    PRESENT.write_text(text(formats()))
