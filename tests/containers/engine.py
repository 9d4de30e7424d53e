"""A container engine: the one that answers here, or else one that is started for the tests, by root.

The latter has all its own below ``.tidemark/containers``, and leaves no bridge and no rule of the firewall. Its images
stay there, so that they are not built again. ``python -m tests.containers.engine`` fails if something is missing, and
says what.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.paths import ROOT, STATE, cache_dir
from tests.support.process import ManagedProcess

FOLDER = STATE / "containers"
LOG = FOLDER / "commands.log"
_COMPOSE = "github.com/docker/compose/v2@v2.40.3"
_COMPOSE_SUM = "h1:XeYkQu1svDtyfZPv5nTwFryQ25ZJMkIlc4pz9HalMPI="
_BRIDGE = "docker0"
# iptables-save says nothing of a table that nobody has used yet.
_NO_RULES = "*nat\nCOMMIT\n*filter\n:FORWARD ACCEPT\nCOMMIT\n"


def missing() -> str | None:
    """What is not there that containers need."""
    if shutil.which("docker") is None:
        return "there is no `docker`: install an engine, such as Debian's docker.io"
    if not _answers() and (os.geteuid() != 0 or shutil.which("dockerd") is None):
        return "no engine answers to `docker version`, and to start one takes `dockerd` and root"
    if not _has_compose() and shutil.which("go") is None:
        return "there is no `docker compose`, and no Go to build it with"
    return None


def _answers() -> bool:
    return _succeeds("docker", "version")


def _has_compose() -> bool:
    return _succeeds("docker", "compose", "version")


def _succeeds(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def call(*command: str | Path, given: str = "", cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> str:
    """What a command prints, with ``given`` for its standard input; RuntimeError with the log's end if it fails.

    Standard error goes to the log. ``env`` is added to this process's environment.
    """
    with LOG.open("a") as log:
        whole = os.environ | (env or {})
        done = subprocess.run(
            command, cwd=cwd, env=whole, input=given, stdout=subprocess.PIPE, stderr=log, text=True, check=False
        )
    if done.returncode:
        end = "\n".join([*done.stdout.splitlines(), *LOG.read_text(errors="replace").splitlines()][-40:])
        raise RuntimeError(f"{' '.join(map(str, command))}: exit code {done.returncode}; the end of {LOG}:\n{end}")
    return done.stdout


class Engine:
    """The command lines of an engine."""

    def __init__(self, env: Mapping[str, str]) -> None:
        """``env`` says where it is."""
        self._env = env
        self._compose = ("docker", "compose") if _has_compose() else (_built_compose(),)

    def docker(self, *arguments: str, given: str = "") -> str:
        """What ``docker`` prints, see :func:`call`."""
        return call("docker", *arguments, given=given, env=self._env)

    def compose(self, *arguments: str, given: str = "") -> str:
        """What ``docker compose`` prints."""
        return call(*self._compose, *arguments, given=given, env=self._env)

    def has_image(self, name: str) -> bool:
        """Whether the image is there."""
        return bool(self.docker("images", "--quiet", name))

    def can_pull(self, name: str) -> bool:
        """Whether the image is there now, or its registry gave it."""
        try:
            return self.has_image(name) or bool(self.docker("pull", "--quiet", name))
        except RuntimeError:
            return False


@contextmanager
def running_engine() -> Iterator[Engine]:
    """The engine that answers, or one of our own until the end of the block; RuntimeError says what is missing."""
    if why := missing():
        raise RuntimeError(why)
    FOLDER.mkdir(parents=True, exist_ok=True)
    LOG.write_text("")
    if _answers():
        yield Engine({})
        return
    socket = f"unix://{FOLDER}/docker.sock"
    command: list[str | Path] = [
        *("dockerd", "--host", socket, "--pidfile", FOLDER / "docker.pid"),
        *("--data-root", FOLDER / "data", "--exec-root", FOLDER / "run"),
        *("--storage-driver", "overlay2", "--exec-opt", "native.cgroupdriver=cgroupfs"),
    ]
    with network_restored(), ManagedProcess("dockerd", command, log=FOLDER / "dockerd.log") as process:
        process.wait_until(lambda: _succeeds("docker", "--host", socket, "version"))
        yield Engine({"DOCKER_HOST": socket})


@contextmanager
def network_restored() -> Iterator[None]:
    """The machine's rules and bridges are at the end what they were."""
    rules = call("iptables-save")
    bridge = Path("/sys/class/net", _BRIDGE)
    had_bridge = bridge.exists()
    try:
        yield
    finally:
        call("iptables-restore", given=_NO_RULES + rules)
        if bridge.exists() and not had_bridge:
            call("ip", "link", "delete", _BRIDGE)


def _built_compose() -> Path:
    """The compose program, built from Go's modules once for this user: Debian's engine comes without it."""
    program = cache_dir() / "compose" / _COMPOSE.rpartition("@")[2]
    if not program.exists():
        module = json.loads(call("go", "mod", "download", "-json", _COMPOSE))
        if module["Sum"] != _COMPOSE_SUM:
            raise RuntimeError(f"{_COMPOSE} has the checksum {module['Sum']}, and not {_COMPOSE_SUM}")
        program.parent.mkdir(parents=True, exist_ok=True)
        # A module that excludes versions of others is built only as the main one.
        with tempfile.TemporaryDirectory(dir=program.parent) as work:
            source = shutil.copytree(module["Dir"], Path(work, "source"), copy_function=shutil.copyfile)
            call("go", "build", "-o", Path(work, "compose"), "./cmd", cwd=source)
            Path(work, "compose").rename(program)
    return program


if __name__ == "__main__":
    sys.exit(missing())
