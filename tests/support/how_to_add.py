"""The sections of "How to add" on the page of the code, followed step by step with a stub."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.support.paths import ROOT
from tidemark.errors import TidemarkError

_MISSED: Final = (AssertionError, LookupError, ValueError, ImportError, OSError, TidemarkError)
"""The errors of checks that miss a step."""


class Place:
    """A place where steps are taken: registries to patch, and a copy of the documents to edit."""

    def __init__(self, patch: pytest.MonkeyPatch, root: Path) -> None:
        self.patch, self.root = patch, root
        shutil.copytree(ROOT / "docs", root / "docs", ignore=shutil.ignore_patterns("images"))

    def edit(self, page: str, change: Callable[[str], str]) -> None:
        """Replace the text of a page of the copy."""
        path = self.root / "docs" / page
        before = path.read_text(encoding="utf-8")
        after = change(before)
        assert after != before, f"{page} is as before"
        path.write_text(after, encoding="utf-8")


class Step(NamedTuple):
    """A step of a section: its words there, and the same done to a place."""

    words: str
    take: Callable[[Place], object]


def section(title: str) -> str:
    """The words of a section, in one line."""
    text = (ROOT / "docs" / "code.md").read_text(encoding="utf-8").partition(f"\n### {title}\n")[2]
    return " ".join(re.split(r"\n##+ ", text)[0].split())


def misses(check: Callable[[Place], object], place: Place) -> bool:
    """True if ``check`` finds that something is missing."""
    try:
        check(place)
    except _MISSED:
        return True
    return False


def follow(title: str, steps: list[Step], check: Callable[[Place], object], folder: Path) -> None:
    """Take the steps that the section names: ``check`` passes after all of them, and fails if one is left out."""
    text = section(title)
    assert not [step.words for step in steps if step.words not in text]
    for left_out in (None, *steps):
        with pytest.MonkeyPatch.context() as patch:
            place = Place(patch, folder / str(steps.index(left_out) if left_out else "all"))
            for step in steps:
                if step is not left_out:
                    step.take(place)
            if left_out is None:
                check(place)
            else:
                assert misses(check, place), f"nothing misses the step: {left_out.words}"
