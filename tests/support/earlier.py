"""An earlier version of Tidemark: a tree of this repository's history, its wheel, and environments with it.

It is the last release. Where history has none, it is the last commit before version 1.0.0; where history is cut off, as
in a shallow clone, it is this tree under another version.
"""

from __future__ import annotations

import re
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.distributions import Installed, distributions, install
from tests.support.paths import ROOT

BEFORE_1_0: Final = "22a86ae1"
"""The last commit of version 0.1.0."""

_VERSION: Final = re.compile(r'^version = "(.+)"$', re.MULTILINE)


@dataclass(frozen=True)
class Earlier:
    """The environments of an earlier version, in ``folder``; ``origin`` says which it is."""

    folder: Path
    origin: str
    version: str

    def program(self, part: Installed, name: str) -> Path:
        """A program of the environment of ``part``."""
        return self.folder / part / "bin" / name

    @property
    def jobs(self) -> Path:
        """Spark's programs of that version."""
        [packages] = (self.folder / "spark").glob("lib/python3.*/site-packages")
        return packages / "tidemark" / "shipped" / "spark" / "jobs"

    def opened(self) -> list[str]:
        """The files of the checkout that its programs have opened."""
        return (self.folder / "opened.log").read_text().splitlines()


def earlier(folder: Path, *parts: Installed) -> Earlier:
    """The earlier version, installed for ``parts`` in ``folder``."""
    ref = last_release() or (BEFORE_1_0 if _has(BEFORE_1_0) else None)
    return _installed(folder, ref, None, *parts)


def renamed(folder: Path, version: str, *parts: Installed) -> Earlier:
    """This tree under another ``version``, installed for ``parts`` in ``folder``."""
    return _installed(folder, None, version, *parts)


def last_release() -> str | None:
    """The tag of the newest release in history, if there is one."""
    return next(iter(_git("tag", "--list", "v*", "--sort=-v:refname").split()), None)


def _installed(folder: Path, ref: str | None, version: str | None, *parts: Installed) -> Earlier:
    source = folder / "source"
    source.mkdir(parents=True)
    archive = folder / "source.tar"
    _git("archive", "--output", str(archive), ref or _working_tree())
    with tarfile.open(archive) as tree:
        tree.extractall(source, filter="data")
    project = source / "pyproject.toml"
    if ref is None:
        version = version or "0.0.1"
        project.write_text(_VERSION.sub(f'version = "{version}"', project.read_text(), count=1))
    [stated] = _VERSION.findall(project.read_text())[:1]
    [wheel] = distributions(folder / "dist", source).glob("*.whl")
    for part in parts:
        install(part, wheel, folder, folder / "opened.log", source)
    return Earlier(folder, ref or f"this tree as version {stated}", stated)


def _working_tree() -> str:
    """This tree as it is, with changes that are not committed."""
    return _git("stash", "create") or "HEAD"


def _has(ref: str) -> bool:
    asked = ["git", "cat-file", "-e", f"{ref}^{{commit}}"]
    return subprocess.run(asked, cwd=ROOT, check=False, capture_output=True).returncode == 0


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.strip()
