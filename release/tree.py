"""The tree that is released: committed, of one version, with a section of the CHANGELOG."""

from __future__ import annotations

from collections.abc import Iterator

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
    notes = version.notes((space.root / "CHANGELOG.md").read_text(encoding="utf-8"), release)
    (space.dist / "release-notes.md").write_text(notes, encoding="utf-8")
    detail = f"its section {release} is in {space.dist.name}/release-notes.md, {len(notes.splitlines())} lines"
    yield Result("CHANGELOG.md", CheckOutcome.passed, detail)


def _commit(space: Workspace, release: str, commit: str, tags: list[str]) -> Result:
    changed = run("git", "status", "--porcelain", cwd=space.root).splitlines()
    if changed:
        detail = f"{len(changed)} files differ from {commit}, {changed[0][3:]} for example; commit or remove them"
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
