from __future__ import annotations

from pathlib import Path

import pytest

from release import tree
from release.results import CheckFailed, CheckOutcome, run
from release.workspace import Workspace

FILES = {
    "pyproject.toml": '[project]\nversion = "1.2.3"\n',
    "docker-compose.yaml": "image: tidemark-agent:1.2.3\n",
    "CHANGELOG.md": "# Changes\n\n## 1.2.3 - 2027-01-02\n\n* News\n",
    "tests/golden/surface.json": "{}",
    "tests/golden/1.2/surface.json": "{}",
}
PERSON = ("-c", "user.name=Ada", "-c", "user.email=ada@example.com")


@pytest.fixture
def committed(space: Workspace, tmp_path: Path) -> Workspace:
    """A tree of version 1.2.3, with all that a release needs."""
    root = tmp_path / "tree"
    for path, text in FILES.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    run("git", "init", "--quiet", root)
    commit(root)
    return space._replace(root=root)


def commit(root: Path) -> None:
    run("git", "add", "--all", cwd=root)
    run("git", *PERSON, "commit", "--quiet", "--message", "A tree", cwd=root)


def failures(space: Workspace) -> list[str]:
    return [str(result) for result in tree.checked(space) if result.outcome is not CheckOutcome.passed]


def test_a_tree_is_released_with_its_notes(committed: Workspace) -> None:
    assert failures(committed) == []
    assert (committed.dist / "release-notes.md").read_text() == "* News\n"
    run("git", "tag", "v1.2.3", cwd=committed.root)
    assert failures(committed) == []


@pytest.mark.parametrize(
    ("path", "text", "message"),
    [
        ("docker-compose.yaml", "image: tidemark-agent:1.2.4\n", "has 1.2.3, but docker-compose.yaml:1 has 1.2.4"),
        ("tests/golden/surface.json", '{"a": 1}', "tests/golden/1.2 lacks the present surface.json"),
        ("tests/golden/formats.json", "{}", "tests/golden/1.2 lacks the present formats.json"),
    ],
)
def test_what_does_not_agree_fails(committed: Workspace, path: str, text: str, message: str) -> None:
    (committed.root / path).write_text(text)
    commit(committed.root)
    [failure] = failures(committed)
    assert message in failure


def test_what_is_not_committed_fails(committed: Workspace) -> None:
    (committed.root / "more.py").write_text("")
    [failure] = failures(committed)
    assert "more.py not as in" in failure


def test_another_versions_tag_fails(committed: Workspace) -> None:
    run("git", "tag", "v1.3.0", cwd=committed.root)
    [failure] = failures(committed)
    assert "is of version 1.2.3, but tagged v1.3.0" in failure


def test_a_version_without_notes_fails(committed: Workspace) -> None:
    (committed.root / "CHANGELOG.md").write_text("# Changes\n\n## Unreleased\n")
    commit(committed.root)
    with pytest.raises(CheckFailed, match=r"has no section `## 1\.2\.3 - <date>`"):
        failures(committed)
