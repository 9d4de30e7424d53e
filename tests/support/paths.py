"""Where the checkout, its environments and the downloads of this user lie."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

EnvName = Literal["build", "agent", "spark", "airflow", "dev", "java", "docs"]

ROOT = Path(__file__).resolve().parents[2]
STATE = ROOT / ".tidemark"


def cache_dir() -> Path:
    """Downloads that outlive the checkout; the Makefile computes the same path."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tidemark"


def roomy_memory() -> Path | None:
    """Where files lie in memory, if 8 GiB have room there: containers often have a few MiB only."""
    memory = Path("/dev/shm")  # noqa: S108 - pytest makes a directory of its own in it
    if not memory.is_dir() or not os.access(memory, os.W_OK):
        return None
    found = os.statvfs(memory)
    return memory if found.f_bavail * found.f_frsize >= 8 << 30 and not found.f_flag & os.ST_NOEXEC else None


def env_bin(env: EnvName, name: str) -> Path:
    """The program ``name`` of an environment; FileNotFoundError says which make target builds it."""
    program = STATE / "env" / env / "bin" / name
    if not program.exists():
        raise FileNotFoundError(f"{program.relative_to(ROOT)} is missing: run `make env-{env}`")
    return program


def env_python(env: EnvName) -> Path:
    """The interpreter of an environment."""
    return env_bin(env, "python")


def site_packages(env: EnvName) -> Path:
    """Where an environment's packages are installed."""
    [folder] = (env_python(env).parent.parent / "lib").glob("python3.*")
    return folder / "site-packages"
