"""An agent that a test can run, or have do one thing after another, and look into."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from tests.support.waiting import HUNG
from uploader_agent.agent import Agent
from uploader_agent.cli.common import OneShot
from uploader_agent.components import Components
from uploader_agent.partitions.waiting import Wait


class TestedAgent(Agent):
    """The loop, with its components in reach, and what a single upload does."""

    __test__ = False

    def __init__(self, components: Components) -> None:
        super().__init__(components)
        self.components = components
        self.leadership = components.leadership
        self.hold = components.hold
        self.metrics = components.metrics
        self.health = components.health
        self.poller = components.poller
        self.index = components.index
        self.queue = components.queue
        self._once = OneShot(components)

    @contextmanager
    def running(self) -> Iterator[Self]:
        """Its loop runs in a thread of this process; it has drained when the block ends."""
        thread = threading.Thread(target=self.run)
        thread.start()
        try:
            yield self
        finally:
            self.stop()
            thread.join(HUNG)
            assert not thread.is_alive()
            gc.unfreeze()  # hypothesis, imported later, looks for referrers, and sees none that the agent has frozen

    def upload_once(self, *, tails: bool = False) -> None:
        self._once.upload(tails=tails)

    def survey(self) -> None:
        self._once.survey()

    def refresh(self) -> None:
        self._once.refresh()

    def waits(self) -> list[Wait]:
        return self.components.waits()
