from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tidemark.errors import ConfigError
from tidemark.onboarding.onboard import FileChange

BEFORE, AFTER = "a\nb\n", "a\nb\nc\n"


def git(folder: Path, *arguments: str) -> str:
    command = ["git", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "Ada")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "ada@example.com")
    git(tmp_path, "init", "-q", "-b", "main")
    folder = tmp_path / "conf"
    folder.mkdir()
    (folder / "topics.yaml").write_text(BEFORE)
    (folder / "order.avsc").write_text("{}")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    return folder


def test_git_applies_the_patch(repository: Path) -> None:
    change = FileChange(repository / "topics.yaml", BEFORE, AFTER)
    patch = repository / "x.patch"
    patch.write_text(change.patch())
    git(repository.parent, "apply", str(patch))
    assert (repository / "topics.yaml").read_text() == AFTER


def test_a_file_without_a_newline_at_its_end_has_a_patch(repository: Path) -> None:
    path = repository / "topics.yaml"
    path.write_text("a\nb")
    (repository / "x.patch").write_text(FileChange(path, "a\nb", AFTER).patch())
    git(repository.parent, "apply", "conf/x.patch")
    assert path.read_text() == AFTER


def test_a_branch_gets_one_commit_and_the_working_tree_stays(repository: Path) -> None:
    path = repository / "topics.yaml"
    (repository / "other").write_text("staged")
    git(repository, "add", "other")
    before = git(repository, "status", "--porcelain")
    commit = FileChange(path, BEFORE, AFTER).commit("add-orders", "Ingest east/orders\n", [repository / "order.avsc"])
    assert git(repository, "show", "add-orders:conf/topics.yaml") == AFTER
    assert git(repository, "diff", "--stat", "main", "add-orders").count("|") == 1
    assert git(repository, "log", "-1", "--format=%s", commit).strip() == "Ingest east/orders"
    assert git(repository, "status", "--porcelain") == before
    assert (git(repository, "branch", "--show-current").strip(), path.read_text()) == ("main", BEFORE)


def test_what_a_commit_would_lose_or_overwrite_is_refused(
    repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = repository / "topics.yaml"
    change = FileChange(path, BEFORE, AFTER)
    (repository / "new.avsc").write_text("{}")
    cases = [
        (change, "x y", [], "check-ref-format"),
        (change, "main", [], "update-ref"),
        (change, "x", [repository / "new.avsc"], "is not in HEAD, or differs from it"),
        (FileChange(path, "other", AFTER), "x", [], "differs from HEAD"),
    ]
    for one, branch, needed, told in cases:
        with pytest.raises(ConfigError, match=told):
            one.commit(branch, "m", needed)
    outside = tmp_path_factory.mktemp("outside") / "topics.yaml"
    outside.write_text(BEFORE)
    with pytest.raises(ConfigError, match="not in a git repository"):
        FileChange(outside, BEFORE, AFTER).commit("x", "m")
    assert git(repository, "branch", "--format=%(refname:short)").split() == ["main"]


def test_a_file_that_has_changed_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "topics.yaml"
    path.write_text("newer\n")
    with pytest.raises(ConfigError, match="has changed meanwhile"):
        FileChange(path, BEFORE, AFTER).write()
    path.write_text(BEFORE)
    path.chmod(0o640)
    FileChange(path, BEFORE, AFTER).write()
    assert (path.read_text(), path.stat().st_mode & 0o777) == (AFTER, 0o640)
    assert list(tmp_path.iterdir()) == [path]
