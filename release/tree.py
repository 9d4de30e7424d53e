"""The tree that is released: committed, of one version, with a section of the CHANGELOG."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from release import version
from release.results import CheckOutcome, Result, run
from release.workspace import Workspace


def checked(space: Workspace) -> Iterator[Result]:
    """Check the tree, and write the release's notes into ``dist``."""
    release = version.stated(space.root)
    commit = run("git", "rev-parse", "HEAD", cwd=space.root).strip()
    tags = run("git", "tag", "--points-at", "HEAD", "v*", cwd=space.root).split()
    yield _commit(space, release, commit, tags)
    yield _version(release, sorted(version.mentions(space.root)))
    yield _listings(space, release)
    notes = version.notes((space.root / "CHANGELOG.md").read_text(encoding="utf-8"), release)
    (space.dist / "release-notes.md").write_text(notes, encoding="utf-8")
    detail = f"its section {release} is in {space.dist.name}/release-notes.md, {len(notes.splitlines())} lines"
    yield Result("CHANGELOG.md", CheckOutcome.passed, detail)


def _commit(space: Workspace, release: str, commit: str, tags: list[str]) -> Result:
    changed = run("git", "status", "--porcelain", cwd=space.root).splitlines()
    if changed:
        others = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        detail = f"{changed[0][3:]}{others} not as in {commit}; commit or remove what has changed"
        return Result("commit", CheckOutcome.failed, detail)
    if tags and tags != [f"v{release}"]:
        return Result("commit", CheckOutcome.failed, f"{commit} is of version {release}, but tagged {', '.join(tags)}")
    return Result("commit", CheckOutcome.passed, f"{commit}, {f'tagged {tags[0]}' if tags else 'not tagged yet'}")


def _version(release: str, mentions: list[version.Mention]) -> Result:
    wrong = [f"{path}:{line} has {other}" for path, line, other in mentions if other != release]
    if wrong:
        detail = f"pyproject.toml has {release}, but {', '.join(wrong)}; run make version VERSION={release}"
        return Result("version", CheckOutcome.failed, detail)
    paths = dict.fromkeys(mention.path for mention in mentions)
    return Result("version", CheckOutcome.passed, f"{release} in {', '.join(paths)}")


def _listings(space: Workspace, release: str) -> Result:
    """The listings of formats and of the public surface: later versions are compared with those of this release."""
    golden = space.root / "tests" / "golden"
    kept = golden / release.rpartition(".")[0]
    paths = sorted(golden.glob("*.json"))
    wrong = [path.name for path in paths if not _equal(path, kept / path.name)]
    if wrong:
        place = kept.relative_to(space.root)
        detail = f"{place} lacks the present {', '.join(wrong)}; run cp tests/golden/*.json {place}"
        return Result("formats and surface", CheckOutcome.failed, detail)
    names = ", ".join(path.name for path in paths)
    return Result("formats and surface", CheckOutcome.passed, f"kept for later versions: {names}")


def _equal(path: Path, kept: Path) -> bool:
    return kept.exists() and path.read_bytes() == kept.read_bytes()
