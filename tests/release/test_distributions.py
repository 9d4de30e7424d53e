from __future__ import annotations

from pathlib import Path

import pytest

from release import distributions
from release.results import CheckFailed, CheckOutcome
from release.workspace import Workspace


def test_builds_are_equal_wherever_they_are_made(space: Workspace) -> None:
    """From two folders, with other rights of files; and the wheel from the source distribution."""
    results = list(distributions.checked(space))
    assert [result.outcome for result in results] == 4 * [CheckOutcome.passed]
    assert {path.suffix for path in space.dist.iterdir()} == {".whl", ".gz"}
    assert space.wheel.name in results[0].subject


def test_different_bytes_are_no_release(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).write_text(name)
    with pytest.raises(CheckFailed, match=r"one and .*other differ"):
        distributions.require_equal(tmp_path / "one", tmp_path / "other")
