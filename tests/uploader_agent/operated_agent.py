"""The agent's command line over a disk made by hand, with gates that a test opens and closes.

``python -m tests.uploader_agent.operated_agent <gates> <tuning> -- <arguments>``. A gate is a file in the directory
``gates``; while it is there (``<gate>-reached`` says that somebody waits at one)

* ``slow``: no PUT of a ``.log`` comes back; ``begun`` lists those that have begun
* ``refuse``: the store refuses every PUT
* ``quote``: the store fails for a ``.log`` with a message that quotes the secrets of environment and configuration
* ``deaf``: the loop does not turn
* ``crash``: the loop crashes with such a message
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from tests.support.tuned_agent import of_argument
from tests.uploader_agent.fakes import FakeMetadata, WatchedStore
from tidemark.errors import AccessDenied
from tidemark.formats.keys import TopicPartition
from tidemark.store import Store, StoreOptions, open_store
from tidemark.store.base import Traffic
from uploader_agent import cli
from uploader_agent.broker.admin import Cleanup, KafkaTier, Leader, Led, Offsets
from uploader_agent.cli import common
from uploader_agent.disk.log_dirs import find_partitions, topic_id_of
from uploader_agent.disk.watcher import DirectoryWatcher, Heard

_POLL = 0.01


class DiskMetadata:
    """The broker leads whatever lies on its disk."""

    def __init__(self, log_dirs: Collection[Path]) -> None:
        self._log_dirs = log_dirs
        self._told = FakeMetadata()

    def leaders(self, wanted: Collection[TopicPartition], *, everything: bool = False) -> dict[TopicPartition, Leader]:
        found = find_partitions(self._log_dirs).partitions
        self._told.leads = {at: Led(_epoch(folder), topic_id_of(folder)) for at, folder in found.items()}
        return self._told.leaders(wanted, everything=everything)

    def offsets(self, led: Mapping[TopicPartition, Led]) -> dict[TopicPartition, Offsets]:
        return self._told.offsets(led)

    def remote_tier(self, led: Mapping[TopicPartition, Led]) -> dict[TopicPartition, KafkaTier | None]:
        return self._told.remote_tier(led)

    def cleanup(self, topics: Collection[str]) -> dict[str, Cleanup]:
        return self._told.cleanup(topics)

    def close(self) -> None:
        pass


def _epoch(folder: Path) -> int:
    """The newest epoch of the log."""
    return int((folder / "leader-epoch-checkpoint").read_text().splitlines()[-1].split()[0])


class Gates:
    """The directory of gates."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def shut(self, name: str) -> bool:
        return (self._folder / name).exists()

    def pass_through(self, name: str) -> None:
        while self.shut(name):
            (self._folder / f"{name}-reached").touch()
            time.sleep(_POLL)

    def before(self, operation: str, key: str) -> None:
        if operation != "put":
            return
        if self.shut("refuse"):
            raise AccessDenied(key, "AccessDenied: told so")
        if key.endswith(".log"):
            if self.shut("quote"):
                raise _quotation()
            with (self._folder / "begun").open("a") as begun:
                begun.write(f"{key}\n")
            self.pass_through("slow")

    def watcher(self) -> DirectoryWatcher:
        class Gated(DirectoryWatcher):
            """An inotify watcher that may be deaf."""

            def wait(bell, timeout: float) -> Heard:  # noqa: N805 - `self` is the gates
                self.pass_through("deaf")
                if self.shut("crash"):
                    raise _quotation()
                return super().wait(timeout)

        return Gated()


def _quotation() -> RuntimeError:
    keys = " or ".join(os.environ.get(name, "none") for name in ("AWS_SECRET_ACCESS_KEY", "AZURE_STORAGE_ACCOUNT_KEY"))
    return RuntimeError(f"signed with {keys}, logged in with hunter2-of-sasl")


def replaced(folder: Path) -> dict[str, Callable[..., object]]:
    """What stands in ``uploader_agent.cli.common`` for the names of these, with the gates in ``folder``."""
    gates = Gates(folder)
    disk = [path for path in sorted(gates._folder.parent.joinpath("disk").iterdir()) if path.is_dir()]

    def opener(url: str, options: StoreOptions | None = None, traffic: Traffic | None = None) -> Store:
        store = WatchedStore(open_store(url, options, traffic))
        store.before = gates.before
        return store

    return {"open_store": opener, "AdminMetadata": lambda *_: DiskMetadata(disk), "DirectoryWatcher": gates.watcher}


def main() -> None:
    folder, tuning, _, *arguments = sys.argv[1:]
    for name, value in replaced(Path(folder)).items():
        setattr(common, name, value)
    sys.argv = ["tidemark-agent", *arguments]
    cli.main(of_argument(tuning))


if __name__ == "__main__":
    main()
