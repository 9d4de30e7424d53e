"""The version of a release, which ``pyproject.toml`` states: ``make version VERSION=1.1.0`` changes it everywhere.

Charts, images, the compose file and the documents name it too, and must agree.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from release.results import CheckFailed, run

ROOT: Final = Path(__file__).parent.parent

_EVERYWHERE: Final = re.compile(r"(?:\btidemark-(?:agent|airflow|spark):|\btidemark_kafka-)(\d+\.\d+\.\d+)")
"""An image or a distribution, in any text outside of tests, which may name releases that were."""

_IN: Final = {
    "pyproject.toml": re.compile(r'^version = "(.+)"$', re.MULTILINE),
    "deploy/helm/tidemark-agent/Chart.yaml": re.compile(r'^(?:version: |appVersion: ")([\d.]+)', re.MULTILINE),
    "deploy/helm/airflow/values.yaml": re.compile(r"^    tag: (.+)$", re.MULTILINE),
}
"""The other mentions, by file."""


class Mention(NamedTuple):
    """A version that a line of a file states."""

    path: str
    line: int
    version: str


def stated(root: Path = ROOT) -> str:
    """The version that ``pyproject.toml`` states."""
    return str(tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"])


def files(root: Path = ROOT) -> list[str]:
    """The paths of the tree's files, whether committed yet or not."""
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=root).split("\0")
    return sorted({path for path in listed if path and (root / path).is_file()})


def mentions(root: Path = ROOT) -> Iterator[Mention]:
    """All mentions of Tidemark's own version."""
    for path in (path for path in files(root) if not path.startswith("tests/")):
        text = _text(root / path)
        for match in _matches(path, text):
            yield Mention(path, text.count("\n", 0, match.start(1)) + 1, match[1])


def write(version: str, root: Path = ROOT) -> None:
    """Change all mentions to ``version``."""
    for path in {mention.path for mention in mentions(root)}:
        text = _text(root / path)
        for match in reversed(_matches(path, text)):
            text = text[: match.start(1)] + version + text[match.end(1) :]
        (root / path).write_text(text, encoding="utf-8")


def notes(changelog: str, version: str) -> str:
    """The CHANGELOG's section of ``version``, without its heading. Raises CheckFailed if there is none with a date."""
    for section in changelog.split("\n## ")[1:]:
        heading, _, text = section.partition("\n")
        if heading.split()[0] == version:
            if not re.fullmatch(rf"{re.escape(version)} - \d{{4}}-\d\d-\d\d", heading):
                raise CheckFailed(f"CHANGELOG.md: the heading `## {heading}` must be `## {version} - <date>`")
            return text.strip() + "\n"
    raise CheckFailed(f"CHANGELOG.md: has no section `## {version} - <date>`; add one")


def _matches(path: str, text: str) -> list[re.Match[str]]:
    patterns = [_EVERYWHERE, *([_IN[path]] if path in _IN else [])]
    return sorted((match for pattern in patterns for match in pattern.finditer(text)), key=re.Match.start)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""  # a picture


if __name__ == "__main__":
    if len(sys.argv) != 2 or not re.fullmatch(r"\d+\.\d+\.\d+", sys.argv[1]):
        sys.exit("usage: make version VERSION=1.1.0")
    write(sys.argv[1])
