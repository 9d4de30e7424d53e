"""Wheel and source distribution: built twice, from two folders, and compared."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from release.results import CheckFailed, CheckOutcome, Result, run
from release.version import files, stated
from release.workspace import Workspace


def checked(space: Workspace) -> Iterator[Result]:
    """Build into ``dist`` what is published, and compare it with two more builds."""
    first = copy(space.root, space.work / "first")
    second = copy(space.root, space.work / "a folder" / "of another name", umask=0o077)
    built = [build(space, folder, folder.parent / f"{folder.name}-dist") for folder in (first, second)]
    wheel, source = both(space, built[0])
    for path, other in zip((wheel, source), both(space, built[1]), strict=True):
        require_equal(path, other)
        yield _passed(path.name, f"two builds from two folders are equal, sha256 {digest(path)}")
    again = space.work / "from-source"
    build(space, source, again)
    require_equal(wheel, again / wheel.name)
    yield _passed(wheel.name, "the wheel built from the source distribution equals that built from the tree")
    run(space.program("twine"), "check", "--strict", wheel, source)
    yield _passed("twine check --strict", f"{wheel.name} and {source.name}")
    space.publish(wheel, source)


def copy(root: Path, folder: Path, umask: int = 0o022) -> Path:
    """A copy of the tree's files in ``folder``, made under ``umask``; returns the folder."""
    before = os.umask(umask)
    try:
        for path in files(root):
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / path, target)
            target.chmod((0o777 if os.access(root / path, os.X_OK) else 0o666) & ~umask)
    finally:
        os.umask(before)
    return folder


def build(space: Workspace, source: Path, folder: Path) -> Path:
    """Build into ``folder`` a tree's wheel and source distribution, or a source distribution's wheel.

    Times in the archives are that of the last commit.
    """
    kinds = ("--sdist", "--wheel") if source.is_dir() else ("--wheel",)
    python = space.build / "bin" / "python"
    options = ("--quiet", "--no-build-isolation", "--offline", "--python", python, "--out-dir", folder)
    run(space.uv, "build", *options, *kinds, source, env={"SOURCE_DATE_EPOCH": space.epoch})
    return folder


def both(space: Workspace, folder: Path) -> tuple[Path, Path]:
    """The wheel and the source distribution of ``folder``."""
    name = f"tidemark_kafka-{stated(space.root)}"
    return folder / f"{name}-py3-none-any.whl", folder / f"{name}.tar.gz"


def require_equal(first: Path, second: Path) -> None:
    """Raise CheckFailed unless the two files have the same bytes."""
    if digest(first) != digest(second):
        raise CheckFailed(f"{first} and {second} differ: find out in which member with diffoscope or unzip -lv")


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _passed(subject: str, detail: str) -> Result:
    return Result(subject, CheckOutcome.passed, detail)
