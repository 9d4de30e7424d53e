"""The agent's command line over a store that notes each PUT, and signals its own process at a chosen one.

``python -m tests.uploader_agent.faulty_agent <tuning> <notes> <signal> <when> <suffix> <n> -- <arguments>``: ``when``
is ``before``, ``after`` or ``never`` the ``n``-th PUT of a key that ends in ``suffix``.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

from tests.support.tuned_agent import of_argument
from tests.uploader_agent.fakes import WatchedStore
from tidemark.store import Store, StoreOptions, open_store
from tidemark.store.base import Traffic
from uploader_agent import cli
from uploader_agent.cli import common


class FaultyStore(WatchedStore):
    """Signals the process at the chosen PUT."""

    def __init__(self, inner: Store, notes: Path, number: signal.Signals, when: str, suffix: str, n: int) -> None:
        super().__init__(inner)
        self._notes = notes
        self._fault = (number, when, suffix, n)
        self._seen = {"before": 0, "after": 0}
        self._lock = threading.Lock()
        self.before = lambda operation, key: self._at("before", operation, key)
        self.after = lambda operation, key: self._at("after", operation, key)

    def _at(self, moment: str, operation: str, key: str) -> None:
        number, when, suffix, n = self._fault
        with self._lock:
            if moment == "after" and operation == "put":
                with self._notes.open("a") as notes:
                    notes.write(f"{key}\n")
            if operation == "put" and key.endswith(suffix):
                self._seen[moment] += 1
                if moment == when and self._seen[moment] == n:
                    os.kill(os.getpid(), number)


def main() -> None:
    tuning, notes, number, when, suffix, n, _, *arguments = sys.argv[1:]
    opened: dict[str, Store] = {}

    def opener(url: str, options: StoreOptions | None = None, traffic: Traffic | None = None) -> Store:
        if url not in opened:
            fault = (signal.Signals[number], when, suffix, int(n))
            opened[url] = FaultyStore(open_store(url, options, traffic), Path(notes), *fault)
        return opened[url]

    setattr(common, "open_store", opener)  # noqa: B010 - it is no name that the module offers
    sys.argv = ["tidemark-agent", *arguments]
    cli.main(of_argument(tuning))


if __name__ == "__main__":
    main()
