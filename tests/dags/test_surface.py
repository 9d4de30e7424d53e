from __future__ import annotations

from pathlib import Path

from tests.dags.surface import LISTED, text


def test_the_listed_dags_and_parameters_are_those_of_this_tree(tmp_path: Path) -> None:
    """If they are not: `make surface` writes the list; the difference shows what has changed."""
    assert LISTED.read_text(encoding="utf-8") == text(tmp_path)
