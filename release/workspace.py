"""The folders and programs that the checks share."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final, NamedTuple

from release.results import CheckFailed, run

EXTRAS: Final = ("agent", "spark", "airflow")
"""The parts that are installed alone, each from its own pins."""


class Workspace(NamedTuple):
    """A tree, and the folders for its release: ``work`` is for the checks, ``dist`` for what is published."""

    root: Path
    work: Path
    dist: Path
    build: Path
    """The environment of the build tools."""
    programs: Path
    """The folder of the programs that check."""
    sources: tuple[str, ...] = ()
    """Packages that have no wheels, and are pure Python."""

    @property
    def uv(self) -> Path:
        """The program uv."""
        return self.build / "bin" / "uv"

    @property
    def epoch(self) -> str:
        """The time of the last commit, in seconds since 1970."""
        return run("git", "log", "-1", "--format=%ct", cwd=self.root).strip()

    @property
    def wheel(self) -> Path:
        """The wheel that is published. Raises CheckFailed if it was not built."""
        for path in self.dist.glob("*.whl"):
            return path
        raise CheckFailed(f"{self.dist}: has no wheel, since its check failed")

    def pins(self, extra: str) -> Path:
        """The pinned requirements of an extra."""
        return self.root / "requirements" / f"{extra}.txt"

    def program(self, name: str) -> Path:
        """A program that checks."""
        return self.programs / name

    def publish(self, *paths: Path) -> None:
        """Copy files to ``dist``."""
        for path in paths:
            shutil.copyfile(path, self.dist / path.name)
