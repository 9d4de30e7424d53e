"""Whether a lineage event is what the classes of OpenLineage's client declare, which its schemas generate."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

import attr
import openlineage.client.generated as generated
from openlineage.client.generated.base import BaseFacet, RunEvent

# What the client fills in by itself has a default there, and must be in an event all the same.
_ALWAYS: Final = {BaseFacet: ("_producer", "_schemaURL"), RunEvent: ("producer", "schemaURL", "eventType")}


@cache
def facet_classes() -> dict[str, type[BaseFacet]]:
    """The classes of all facets of OpenLineage's, by the names that their schemas have."""
    for module in pkgutil.iter_modules(generated.__path__, f"{generated.__name__}."):
        importlib.import_module(module.name)
    found: dict[str, type[BaseFacet]] = {}
    new: list[type[BaseFacet]] = [BaseFacet]
    while new:
        one = new.pop()
        found[one.__name__] = one
        new += one.__subclasses__()
    return found


def misfits(kind: Any, value: Any, place: str) -> Iterator[str]:
    """Where ``value`` of an event's JSON is not of the type ``kind``, in words; ``place`` is where it is."""
    origin = get_origin(kind)
    if kind is Any:
        return
    if origin in (Union, UnionType):
        tries = [[*misfits(one, value, place)] for one in get_args(kind)]
        if all(tries):
            yield from max(tries, key=len)
    elif origin in (list, dict):
        yield from _of_container(origin, get_args(kind)[-1], value, place)
    elif attr.has(kind):
        yield from _of_class(kind, value, place)
    elif issubclass(kind, Enum):
        if value not in [one.value for one in kind]:
            yield f"{place}: {value!r} is not one of {[one.value for one in kind]}"
    elif not isinstance(value, (int, float) if kind is float else kind) or (kind is not bool and value is True):
        yield f"{place}: {value!r} is not of type {kind.__name__}"


def _of_container(kind: type[Any], inner: Any, value: Any, place: str) -> Iterator[str]:
    if not isinstance(value, kind):
        yield f"{place}: {value!r} is not of type {kind.__name__}"
        return
    for name, one in value.items() if isinstance(value, dict) else enumerate(value):
        yield from misfits(inner, one, f"{place}.{name}")


def _of_class(kind: type[Any], value: Any, place: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{place}: {value!r} is not of type dict"
        return
    hints = get_type_hints(kind)
    always = {name for parent, names in _ALWAYS.items() if issubclass(kind, parent) for name in names}
    for field in attr.fields(kind):
        if field.name in value:
            yield from misfits(hints[field.name], value[field.name], f"{place}.{field.name}")
        elif field.default is attr.NOTHING or field.name in always:
            yield f"{place}: has no {field.name}"
