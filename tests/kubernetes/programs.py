"""Kubernetes' programs, etcd, Helm and the plugins of a pod's network, built by Go from published modules.

``programs/go.mod`` names them with their versions, ``programs/go.sum`` has the checksums. They are built once for this
user, which takes long on 2 cores. ``python -m tests.kubernetes.programs`` fails if something is missing,
and names it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Literal

from tests.support.paths import cache_dir

Program = Literal["etcd", "helm", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubelet"]

_MODULE = Path(__file__).with_name("programs")
_ENV = {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off"}
_STAMP = "k8s.io/component-base/version.git"
_RENAMED = {"server": "etcd"}
"""Programs that are built under the name of their folder."""


def version() -> str:
    """Kubernetes' version, such as ``1.34.4``."""
    [number] = re.findall(r"^\tk8s\.io/kubernetes v(\S+)", (_MODULE / "go.mod").read_text(), re.MULTILINE)
    return str(number)


def missing() -> str | None:
    """Name the first thing that the programs need and this machine does not have; None without one."""
    if _folder().exists():
        return None
    compiler = shutil.which("go")
    if compiler is None:
        return "there is no `go` to build Kubernetes with"
    done = subprocess.run(
        (compiler, "list", "-m"), cwd=_MODULE, env=os.environ | _ENV, capture_output=True, text=True, check=False
    )
    return f"`go` does not take programs/go.mod: {done.stderr.strip()}" if done.returncode else None


def program(name: Program) -> Path:
    """A program; it is there after :func:`build`."""
    return _folder() / name


def network_plugins() -> Path:
    """The folder with the plugins of a pod's network."""
    return _folder()


def build() -> None:
    """Build all programs, unless that was done before; RuntimeError has the compiler's message."""
    folder = _folder()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=folder.parent) as work:
                _build(Path(work, "bin"))
                Path(work, "bin").rename(folder)


def _build(folder: Path) -> None:
    folder.mkdir()
    major, minor, _ = version().split(".")
    stamps = {"Version": f"v{version()}", "Major": major, "Minor": minor}
    flags = " ".join(["-s -w", *(f"-X {_STAMP}{name}={value}" for name, value in stamps.items())])
    command = ("go", "build", "-mod=readonly", "-trimpath", "-ldflags", flags, "-o", f"{folder}/", "tool")
    done = subprocess.run(command, cwd=_MODULE, env=os.environ | _ENV, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr}")
    for name, wanted in _RENAMED.items():
        (folder / name).rename(folder / wanted)


def _folder() -> Path:
    pins = b"".join((_MODULE / name).read_bytes() for name in ("go.mod", "go.sum"))
    return cache_dir() / "kubernetes" / f"{version()}-{hashlib.sha256(pins).hexdigest()[:12]}"


if __name__ == "__main__":
    sys.exit(missing())
