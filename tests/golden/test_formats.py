"""A format that changes is noticed, and may change only by the rules of docs/compatibility.md."""

from __future__ import annotations

import json
from typing import Any, Literal, get_args

import pytest
from pydantic import create_model

from tests.golden import HERE, RELEASED
from tests.golden.formats import GONE, NEW_NUMBER, OPTIONAL, PRESENT, broken, formats, kinds, text
from tidemark.formats.base import Model, StoredObject
from tidemark.formats.table.parquet_layout import ParquetLayout


def test_the_listing_is_that_of_this_tree() -> None:
    """If it is not: `python -m tests.golden.formats` writes it; the difference shows what has changed."""
    assert PRESENT.read_text() == text(formats())


@pytest.mark.parametrize("version", RELEASED)
def test_nothing_that_a_release_reads_or_wrote_has_changed(version: str) -> None:
    assert broken(json.loads((HERE / version / "formats.json").read_text()), formats()) == []


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
def test_each_earlier_format_is_read(kind: type[StoredObject]) -> None:
    listed = get_args(kind.model_fields["format"].annotation)
    assert listed == tuple(range(1, kind.newest_format() + 1))
    assert listed == (1,) or "needs" in kind.model_fields, "the version that an earlier one asks for"


class Part(Model):
    """A nested piece."""

    n: int


class Kind(StoredObject):
    """A kind as a release has it."""

    name: str
    state: Literal["open", "closed"] = "open"
    parts: tuple[Part, ...] = ()
    layout: ParquetLayout = ParquetLayout()


def changed(**fields: Any) -> dict[str, Any]:
    """The format of ``Kind`` with other ``fields``."""
    from tests.golden.formats import _of_model

    own = {name: (field.annotation, field) for name, field in Kind.model_fields.items() if name not in fields}
    return {"Kind": _of_model(create_model("Kind", __base__=StoredObject, **{**own, **fields}))}


class PartWithMore(Part):
    """With an optional field."""

    more: int = 0


class PartThatNeedsMore(Part):
    """With a required field."""

    more: int


class Layout(ParquetLayout):
    """With a further setting."""

    pages: int = 0


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({}, None),
        ({"added": (str, "")}, None),
        ({"added": (Part | None, None)}, None),
        ({"parts": (tuple[PartWithMore, ...], ())}, None),
        ({"format": (Literal[1, 2], 2), "name": (int, ...)}, None),
        ({"name": (int, ...)}, NEW_NUMBER),
        ({"name": (str, "")}, NEW_NUMBER),
        ({"state": (Literal["open", "closed", "ajar"], "open")}, NEW_NUMBER),
        ({"state": (Literal["open", "closed"], "closed")}, NEW_NUMBER),
        ({"added": (str, ...)}, OPTIONAL),
        ({"parts": (tuple[PartThatNeedsMore, ...], ())}, OPTIONAL),
        ({"layout": (Layout, Layout())}, None),
        ({"format": (Literal[2], 2)}, None),
    ],
)
def test_the_rules(fields: dict[str, Any], rule: str | None) -> None:
    found = broken(changed(), changed(**fields))
    assert [problem for problem in found if rule is None or not problem.endswith(rule)] == []
    assert bool(found) == (rule is not None)


def test_a_kind_and_a_number_that_go_are_noticed() -> None:
    released = changed(format=(Literal[1, 2], 2))
    assert broken(released, {}) == [f"Kind: is gone: {GONE}"]
    assert broken(released, changed()) == [f"Kind: format 2 is no longer read: {GONE}"]


def test_each_change_gives_another_digest() -> None:
    assert changed()["Kind"]["digest"] != changed(added=(str, ""))["Kind"]["digest"]
