"""The tree's release, in folders of a test's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from release.workspace import Workspace
from tests.support.paths import ROOT, env_bin


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    """The tree, with folders of its own."""
    for name in ("work", "dist"):
        (tmp_path / name).mkdir()
    build = env_bin("build", "python").parent.parent
    return Workspace(ROOT, tmp_path / "work", tmp_path / "dist", build, env_bin("dev", "python").parent)
