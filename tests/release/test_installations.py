from __future__ import annotations

import sys
from pathlib import Path

import pytest

from release import installations
from release.results import CheckFailed
from release.version import stated
from release.workspace import Workspace
from tests.support.paths import env_bin


def test_the_supported_pythons_are_those_of_the_package(space: Workspace) -> None:
    assert installations.supported(space) == ["3.11", "3.12", "3.13"]


def test_a_python_that_runs_is_found() -> None:
    found = installations.find(".".join(map(str, sys.version_info[:2])))
    assert found is not None
    assert found.exists()


def test_a_name_that_does_not_run_is_no_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as that of a version manager in which another version is chosen."""
    (tmp_path / "python3.12").write_text("#!/bin/sh\nexit 127\n")
    (tmp_path / "python3.12").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert installations.find("3.12") is None


def test_commands_of_another_version_fail(space: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = env_bin("agent", "tidemark").parent
    assert "tidemark-agent --help" in installations.run_commands(space, "agent", programs)
    monkeypatch.setattr(installations, "stated", lambda _: "9.9.9")
    with pytest.raises(CheckFailed, match=rf"tidemark --version must print 9.9.9, but printed: {stated()}"):
        installations.run_commands(space, "agent", programs)
