"""How `make test-kubernetes` finds its programs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.kubernetes import programs


def put_in_path(folder: Path, program: str, command: str) -> None:
    (folder / program).write_text(f"#!/bin/sh\n{command}\n")
    (folder / program).chmod(0o755)


@pytest.mark.parametrize(
    ("go", "lacks"),
    [
        (None, "no `go`"),
        ("echo 'go.mod requires go >= 1.24.0 (running go 1.23.4; GOTOOLCHAIN=local)' >&2; exit 1", "go >= 1.24.0"),
        ('[ "$GOTOOLCHAIN" = local ]', None),
    ],
)
def test_what_is_missing_is_named(
    go: str | None, lacks: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if go is not None:
        put_in_path(tmp_path, "go", go)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    found = programs.missing()
    assert (found is None) == (lacks is None)
    assert (lacks or "") in (found or "")


def test_programs_that_are_built_need_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    programs.program("helm").parent.mkdir(parents=True)
    assert programs.missing() is None


def test_a_changed_version_is_built_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = programs.program("helm")
    copy = tmp_path / "programs"
    shutil.copytree(Path(programs.__file__).with_name("programs"), copy)
    monkeypatch.setattr(programs, "_MODULE", copy)
    assert programs.program("helm") == before
    text = (copy / "go.mod").read_text()
    (copy / "go.mod").write_text(text.replace("helm.sh/helm/v4 v4.", "helm.sh/helm/v4 v4.9"))
    assert programs.program("helm") != before


def test_a_build_that_fails_leaves_nothing_that_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_path(tmp_path, "go", "echo 'does not compile' >&2; exit 2")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(RuntimeError, match=r"go build .*: exit code 2\ndoes not compile"):
        programs.build()
    assert not programs.program("helm").parent.exists()
