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
    "pyproject.toml": re.compile(r'^version = "(.+)"$'),
    "deploy/helm/tidemark-agent/Chart.yaml": re.compile(r'^(?:version: |appVersion: ")([\d.]+)'),
    "deploy/helm/airflow/values.yaml": re.compile(r"^    tag: (.+)$"),
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
        for number, line in enumerate(_text(root / path).splitlines(), 1):
            yield from (Mention(path, number, match[1]) for match in _matches(path, line))


def write(version: str, root: Path = ROOT) -> None:
    """Change all mentions to ``version``."""
    for path in {mention.path for mention in mentions(root)}:
        lines = _text(root / path).splitlines(keepends=True)
        (root / path).write_text("".join(_changed(path, line, version) for line in lines), encoding="utf-8")


def notes(changelog: str, version: str) -> str:
    """The CHANGELOG's section of ``version``, without its heading. Raises CheckFailed if there is none with a date."""
    for section in changelog.split("\n## ")[1:]:
        heading, _, text = section.partition("\n")
        if heading.split()[0] == version:
            if not re.fullmatch(rf"{re.escape(version)} - \d{{4}}-\d\d-\d\d", heading):
                raise CheckFailed(f"CHANGELOG.md: the heading `## {heading}` must be `## {version} - <date>`")
            return text.strip() + "\n"
    raise CheckFailed(f"CHANGELOG.md: has no section `## {version} - <date>`; add one")


def _matches(path: str, line: str) -> list[re.Match[str]]:
    own = _IN.get(path)
    return [*_EVERYWHERE.finditer(line), *(own.finditer(line) if own else ())]


def _changed(path: str, line: str, version: str) -> str:
    for match in reversed(_matches(path, line)):
        line = line[: match.start(1)] + version + line[match.end(1) :]
    return line


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""  # a picture


if __name__ == "__main__":
    if len(sys.argv) != 2 or not re.fullmatch(r"\d+\.\d+\.\d+", sys.argv[1]):
        sys.exit("usage: make version VERSION=1.1.0")
    write(sys.argv[1])
