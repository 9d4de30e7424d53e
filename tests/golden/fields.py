"""The fields of a pydantic model as text: each path with its type, its rules and its default."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

_INTEGER: Final = {"minimum": -(1 << 63), "maximum": (1 << 63) - 1}
_RULES: Final = ("format", "pattern", "minimum", "maximum", "exclusiveMinimum", "minLength", "maxLength", "minItems",
                 "maxItems", "contentEncoding")  # fmt: skip


def fields_of(schema: Any, definitions: Any) -> dict[str, str]:
    """The fields of a JSON schema by path: ``a[]`` are items, ``a{}`` values of any key, ``a<b>`` a kind of several."""
    return dict(_fields(schema, definitions, "", ()))


def _fields(schema: Any, definitions: Any, path: str, within: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """(path, text) of everything below the object, list or mapping ``schema``."""
    kinds = schema.get("discriminator", {}).get("mapping", {})
    for name, reference in kinds.items():
        yield from _fields({"$ref": reference}, definitions, f"{path}<{name}>", within)
    for part in () if kinds else _parts(schema):
        yield from _fields(part, definitions, path, within)
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if name not in within:
            yield from _fields(definitions[name], definitions, path, (*within, name))
        return
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        below = f"{path}.{name}" if path else name
        absent = "" if name in required else f" = {json.dumps(_default(field, definitions), ensure_ascii=False)}"
        yield below, _type(field, definitions) + absent
        yield from _fields(field, definitions, below, within)
    for name, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(schema.get(name), dict):
            below = f"{path}{mark}"
            yield below, _type(schema[name], definitions)
            yield from _fields(schema[name], definitions, below, within)


def _default(field: Any, definitions: Any) -> Any:
    """The default of a field; of an object what differs from the defaults of its own fields, which have lines."""
    default = field.get("default", "…")
    if not isinstance(default, dict) or "$ref" not in field:
        return default
    own = definitions[field["$ref"].rpartition("/")[2]].get("properties", {})
    return {name: value for name, value in default.items() if own[name].get("default", "…") != value}


def _type(schema: Any, definitions: Any) -> str:
    """The type of a value and its rules, in a line."""
    if "$ref" in schema:
        return _type(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    if "discriminator" in schema:
        return " | ".join(schema["discriminator"]["mapping"])
    if parts := _parts(schema):
        return " or ".join(_type(part, definitions) for part in parts)
    if "const" in schema:
        return json.dumps(schema["const"])
    if "enum" in schema:
        return " | ".join(map(json.dumps, schema["enum"]))
    if "prefixItems" in schema:
        return f"[{', '.join(_type(part, definitions) for part in schema['prefixItems'])}]"
    own = {name: schema[name] for name in _RULES if name in schema}
    rules = [f"{name} {value}" for name, value in own.items() if _INTEGER.get(name) != value]
    closed = (
        ["closed"] if schema.get("additionalProperties") is False else []
    )  # it refuses fields that it does not know
    return " ".join([schema.get("type", "any"), *closed, *rules])


def _parts(schema: Any) -> list[Any]:
    """The alternatives of a union."""
    return [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
