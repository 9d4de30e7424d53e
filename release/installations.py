"""Installations of the wheel alone, from the pinned requirements, on each Python that is supported."""

from __future__ import annotations

import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from release.results import CheckFailed, CheckOutcome, Result, run
from release.version import stated
from release.workspace import EXTRAS, Workspace

_NEXT: Final = "3.14"
"""The Python whose wheels are only looked for."""


def checked(space: Workspace) -> Iterator[Result]:
    """Install each extra on each supported Python that is here, and run its commands."""
    for version in supported(space):
        python = find(version)
        if python is None:
            yield Result(f"Python {version}", CheckOutcome.unchecked, "is not on this machine")
            continue
        for extra in EXTRAS:
            try:
                ran = run_commands(space, extra, installed(space, extra, version, python))
            except CheckFailed as failure:
                yield Result(f"{extra} on Python {version}", CheckOutcome.failed, str(failure))
            else:
                yield Result(f"{extra} on Python {version}", CheckOutcome.passed, ", ".join(ran))


def next_python(space: Workspace) -> Iterator[Result]:
    """Say whether each pin has a wheel for the next Python; no release depends on it."""
    sources = [word for name in space.sources for word in ("--no-binary", name)]
    options = ("--dry-run", "--no-deps", "--only-binary", ":all:", *sources, "--require-hashes")
    target = ("--python", space.build / "bin" / "python", "--python-version", _NEXT, "--target", space.work / "next")
    for extra in EXTRAS:
        try:
            run(space.uv, "pip", "install", "--quiet", *options, *target, "--requirement", space.pins(extra))
        except CheckFailed as failure:
            detail = "not each pin has a wheel: " + " ".join(str(failure).partition(": ")[2].split())
        else:
            detail = "each pin has a wheel"
        yield Result(f"{extra} on Python {_NEXT}", CheckOutcome.noted, detail)


def supported(space: Workspace) -> list[str]:
    """The versions of Python that the package admits."""
    required = tomllib.loads((space.root / "pyproject.toml").read_text())["project"]["requires-python"]
    lower, upper = (int(bound.rpartition(".")[2]) for bound in required.split(","))
    return [f"3.{minor}" for minor in range(lower, upper)]


def find(version: str) -> Path | None:
    """The Python of a version on this machine, if there is one: of the PATH, or of pyenv's versions."""
    name = f"python{version}"
    candidates = [path for path in (shutil.which(name),) if path]
    if pyenv := shutil.which("pyenv"):
        listed = subprocess.run([pyenv, "whence", "--path", name], capture_output=True, text=True, check=False)
        candidates += listed.stdout.splitlines()
    for candidate in candidates:
        # A name of the PATH may be pyenv's, for a version that is not chosen here.
        if subprocess.run([candidate, "-V"], capture_output=True, check=False).returncode == 0:
            return Path(candidate)
    return None


def environment(space: Workspace, extra: str, version: str) -> Path:
    """The folder of an environment."""
    return space.work / f"{extra}-{version}"


def installed(space: Workspace, extra: str, version: str, base: Path) -> Path:
    """Make the environment of ``extra`` from its pins and the wheel; returns its folder of programs."""
    folder = environment(space, extra, version)
    python = folder / "bin" / "python"
    run(space.uv, "venv", "--quiet", "--python", base, folder)
    run(space.uv, "pip", "sync", "--quiet", "--require-hashes", "--python", python, space.pins(extra))
    run(space.uv, "pip", "install", "--quiet", "--no-deps", "--no-index", "--python", python, space.wheel)
    run(space.uv, "pip", "check", "--quiet", "--python", python)
    return python.parent


def run_commands(space: Workspace, extra: str, programs: Path) -> list[str]:
    """Run the commands that ``extra`` brings, outside of the checkout; returns them as people write them.

    Raises:
        CheckFailed: a command fails, states another version, or does not find Tidemark's plugin.
    """
    release = stated(space.root)
    airflow = {"AIRFLOW__CORE__LOAD_EXAMPLES": "False", "AIRFLOW_HOME": str(space.work)}
    expected = {("tidemark", "--version"): release, **_expected(space, extra, programs)}
    for command, wanted in expected.items():
        said = run(programs / command[0], *command[1:], cwd=space.work, env=airflow)
        if wanted not in said:
            raise CheckFailed(f"{' '.join(command)} must print {wanted}, but printed: {said.strip()}")
    return [" ".join((command[0], *(Path(word).name for word in command[1:]))) for command in expected]


def _expected(space: Workspace, extra: str, programs: Path) -> dict[tuple[str, ...], str]:
    """The commands of an extra, and what each must print."""
    if extra == "agent":
        return {("tidemark-agent", "--version"): stated(space.root), ("tidemark-agent", "--help"): "upload-once"}
    if extra == "spark":
        jobs = run(programs / "tidemark", "paths", "jobs", cwd=space.work).strip()
        return {("python", f"{jobs}/ingest.py", "--help"): "--topics"}
    return {("airflow", "plugins"): "TidemarkPlugin"}
