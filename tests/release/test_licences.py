from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest

from release.licences import REVIEWED, Dependency, dependencies, is_permissive, refusals

PERMISSIVE = ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "License :: OSI Approved :: BSD License"]


@pytest.mark.parametrize(
    ("licence", "permissive"),
    [
        ("MIT", True),
        ("License :: OSI Approved :: BSD License", True),
        ("GPL-3.0-only OR MIT", True),
        ("MIT AND (GPL-3.0-only OR Apache-2.0)", True),
        ("MIT AND Apache-2.0 WITH LLVM-exception", True),
        ("MIT AND GPL-3.0-only", False),
        ("GPL-2.0-only WITH Classpath-exception-2.0", False),
        ("Somebody's own", False),
        ("License :: OSI Approved :: GNU General Public License (GPL)", False),
    ],
)
def test_a_licence_is_permissive_by_what_may_be_chosen(licence: str, permissive: bool) -> None:
    assert is_permissive(licence, PERMISSIVE) == permissive


@pytest.mark.parametrize(
    ("licences", "reviewed", "message"),
    [
        (("MIT",), {}, None),
        (("GPL-3.0-only",), {}, r'a 1 declares \["GPL-3.0-only"\]: review it'),
        (("MIT", "GPL-3.0-only"), {}, "review it"),
        ((), {}, r"a 1 declares \[\]: review it"),
        (("GPL-3.0-only",), {"a": {"declared": ["GPL-3.0-only"]}}, None),
        (("GPL-3.0-only",), {"a": {"declared": ["LGPL-3.0-only"]}}, "review it"),
        (("MIT",), {"a": {"declared": ["GPL-3.0-only"]}}, "a needs no review: remove it"),
        (("MIT",), {"gone": {"declared": []}}, "gone needs no review: remove it"),
    ],
)
def test_what_is_not_permissive_is_reviewed(
    licences: tuple[str, ...], reviewed: dict[str, dict[str, Any]], message: str | None
) -> None:
    messages = refusals([Dependency("a", "1", licences)], PERMISSIVE, reviewed)
    assert len(messages) == (message is not None)
    assert re.search(message or "", " ".join(messages))


def test_declared_licences_of_every_form_are_read() -> None:
    entries = [{"license": {"id": "MIT"}}, {"license": {"name": "License :: Other"}}, {"expression": "MIT OR ISC"}]
    bill = {"components": [{"name": "a", "version": "1", "licenses": entries}, {"name": "b", "version": "2"}]}
    assert dependencies(bill) == [
        Dependency("a", "1", ("MIT", "License :: Other", "MIT OR ISC")),
        Dependency("b", "2", ()),
    ]


def test_each_review_has_a_reason() -> None:
    reviewed = tomllib.loads(REVIEWED.read_text())
    assert all(package["reason"] for package in reviewed["packages"].values())
    assert all(reviewed["vulnerabilities"].values())
