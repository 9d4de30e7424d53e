"""The retention of packs, with the real code and shorter ages: a process that deletes what seals are proved to hold."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from unittest.mock import patch

from tests.uploader_agent.simulation.clock import Scheduler
from tests.uploader_agent.simulation.landing import DEPLOYMENT, RUN_LIMIT
from tests.uploader_agent.simulation.oracle import CLUSTER
from tidemark.endpoints import EndpointSettings
from tidemark.errors import StoreError
from tidemark.planning.maintenance import pack_proof
from tidemark.storage import Storage
from tidemark.store import Store, StoreOptions
from tidemark_spark.retention import packs

SETTLED = timedelta(seconds=RUN_LIMIT + 3)
COMPARED = timedelta(seconds=30)


class PackRetention:
    """Visits all packs again and again, in ``store``, which can delete."""

    def __init__(self, store: Store, scheduler: Scheduler, rng: random.Random, tell: Callable[[str], None]) -> None:
        self.counts: Counter[str] = Counter()
        self._store = store
        self._scheduler = scheduler
        self._rng = rng
        self._tell = tell

    def run(self) -> None:
        """Delete until the process is killed."""
        while True:
            self._scheduler.sleep(self._rng.uniform(5.0, 30.0))
            try:
                self.visit()
            except (StoreError, OSError, RuntimeError) as error:  # as the store fails; the next run does it
                self._tell(f"   retention of packs: {type(error).__name__}: {error}")

    def visit(self) -> None:
        """Delete the packs that may go now."""
        for report in packs.retain_packs(DEPLOYMENT, CLUSTER):
            self.counts["packs deleted"] += report.removed
            self.counts["packs needed"] += report.needed

    def visit_old(self) -> None:
        """Delete the packs that may ever go, as if everything was old."""
        with _ages(timedelta(0), timedelta(0)):
            self.visit()

    @contextmanager
    def patched(self) -> Iterator[None]:
        """The ages and the store of the simulation."""

        def opened(cluster: str, endpoints: EndpointSettings, _options: StoreOptions) -> Storage:
            return Storage(cluster, endpoints, opener=lambda _url: self._store)

        with patch.object(packs, "Storage", opened), _ages(SETTLED, COMPARED):
            yield


@contextmanager
def _ages(settled: timedelta, compared: timedelta) -> Iterator[None]:
    """Let retention wait for as long."""
    with (
        patch.object(packs, "SETTLED", settled),
        patch.object(pack_proof, "SETTLED", settled),
        patch.object(packs, "COMPARED", compared),
    ):
        yield
