"""Wheel and source distribution as ``make dist`` makes them, and environments that are installed from them alone."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Literal

from tests.support.paths import ROOT, cache_dir, env_bin

Installed = Literal["agent", "spark", "airflow"]

_WATCHER = """\
import os
import sys

_log = os.open({log!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def _watch(event, arguments):
    if event == "open" and isinstance(arguments[0], (str, os.PathLike)):
        path = os.path.abspath(os.fspath(arguments[0]))
        if path.startswith({roots!r}) and not path.startswith({state!r}):
            os.write(_log, f"{{path}}, by {{sys.argv}}\\n".encode())


sys.addaudithook(_watch)
"""


def distributions(folder: Path, source: Path = ROOT) -> Path:
    """Build both of the tree ``source`` into ``folder``, the wheel from the source distribution; returns it."""
    _uv("build", "--no-build-isolation", "--python", env_bin("build", "python"), "--out-dir", folder, source)
    return folder


def install(name: Installed, wheel: Path, folder: Path, log: Path, source: Path = ROOT) -> Path:
    """Make an environment in ``folder`` from the pins of ``name`` in the tree ``source``, and the wheel.

    Returns its folder of programs.

    Each Python process of it writes a line to ``log`` for each file of the checkout that it opens.
    """
    environment = folder / name
    python = environment / "bin" / "python"
    _uv("venv", "--python", env_bin("build", "python"), environment)
    _uv("pip", "sync", "--require-hashes", "--python", python, source / "requirements" / f"{name}.txt")
    _uv("pip", "install", "--no-deps", "--no-index", "--python", python, wheel)
    log.touch()
    [packages] = environment.glob("lib/python3.*/site-packages")
    inside = tuple(f"{ROOT / one}/" for one in (".tidemark/env", ".tidemark/wheel"))
    roots = tuple(f"{path}/" for path in ROOT.iterdir() if path.is_dir() and path.name != ".tidemark") + inside
    watcher = _WATCHER.format(log=str(log), roots=roots, state=(f"{ROOT / '.tidemark' / 'env' / 'java'}/",))
    (packages / "watch_checkout.py").write_text(watcher)
    (packages / "watch_checkout.pth").write_text("import watch_checkout\n")
    return python.parent


def _uv(*arguments: str | Path) -> None:
    """Run uv with the Makefile's settings. Raises RuntimeError with what it said if it fails."""
    asked: list[str | Path] = [env_bin("build", "pip"), "config", "get", "global.index-url"]
    index = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    settings = {"UV_CACHE_DIR": str(cache_dir() / "uv"), "UV_PYTHON_DOWNLOADS": "never", "UV_DEFAULT_INDEX": index}
    done = subprocess.run(
        [env_bin("build", "uv"), "--quiet", *arguments],
        env={**{name: value for name, value in settings.items() if value}, **os.environ},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"uv {' '.join(map(str, arguments))} ended with code {done.returncode}\n{done.stderr}")
