"""An agent as a process: it starts knowing nothing, is killed, asked to end, and started again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tests.uploader_agent.simulation.broker import Cluster
from tests.uploader_agent.simulation.client import Client, CommittedLeaders, Questions
from tests.uploader_agent.simulation.clock import Scheduler
from tests.uploader_agent.simulation.disk import LogDir, SimulatedWatcher
from tests.uploader_agent.simulation.faults import Faults
from tests.uploader_agent.simulation.oracle import CLUSTER
from tests.uploader_agent.simulation.store import SimulatedStore
from tests.uploader_agent.simulation.threads import SimulatedRuntime
from tidemark.formats.keys import TopicPartition
from uploader_agent.agent import Agent
from uploader_agent.broker.admin import AdminMetadata, Metadata
from uploader_agent.broker.authority import Authority
from uploader_agent.broker.properties import Broker, BrokerDirs
from uploader_agent.components import Components
from uploader_agent.disk.log_dirs import LogDirs
from uploader_agent.log_source import BrokerDisk, LogSource
from uploader_agent.settings import AgentSettings
from uploader_agent.tuning import AgentTuning

_GRACE = 3.0
"""Seconds by which a question may be late where threads are stalled."""

_MOST_PASSED = 3
"""Questions for offsets that may not all be put while the question who leads is due."""


class Surroundings(NamedTuple):
    """What an agent finds at its start: what it asks, and the source of its log directories."""

    broker: Broker
    metadata: Metadata
    source: LogSource
    log_dirs: LogDirs
    authority: Authority | None = None


def of_broker(
    broker: int, disk: LogDir, cluster: Cluster, scheduler: Scheduler, faults: Faults, _runtime: SimulatedRuntime
) -> Surroundings:
    """An agent's on the disk of ``broker``."""
    there = Broker(broker, CLUSTER, (disk.path,), "127.0.0.1:1", "PLAINTEXT", "kraft")
    properties = disk.path.with_suffix(".properties")
    properties.write_text(f"process.roles=broker\nnode.id={broker}\nlog.dirs={disk.path}\n")
    metadata = AdminMetadata(broker, lambda: Client(cluster, scheduler, faults))
    return Surroundings(
        there, metadata, BrokerDisk(), BrokerDirs(properties, there), CommittedLeaders(cluster, scheduler)
    )


class AgentProcess:
    """The agent called ``name``. ``settings`` are read, and it is ``surrounded``, again at each start."""

    def __init__(
        self,
        name: str,
        disk: LogDir,
        settings: Callable[[], AgentSettings],
        tuning: AgentTuning,
        surrounded: Callable[[SimulatedRuntime], Surroundings],
        store: SimulatedStore,
        scheduler: Scheduler,
        faults: Faults,
    ) -> None:
        self.name = name
        self.disk = disk
        self._settings = settings
        self._tuning = tuning
        self._surrounded = surrounded
        self._store = store
        self._scheduler = scheduler
        self._faults = faults
        self.agent: Agent | None = None
        self.components: Components | None = None
        self._runtime: SimulatedRuntime | None = None
        self._watcher: SimulatedWatcher | None = None
        self._asked_leaders = 0.0
        self._passed = 0  # questions for offsets that were put since who leads ought to have been asked

    def start(self) -> None:
        """Start the agent, unless it runs."""
        if self.agent is not None:
            return
        settings = self._settings()
        settings.state_dir.mkdir(exist_ok=True)
        self._runtime = SimulatedRuntime(self._scheduler, self._died)
        self._watcher = SimulatedWatcher(self.disk, self._scheduler, self._faults)
        self.disk.watches = self._watcher.watches
        around = self._surrounded(self._runtime)
        self.components = Components(
            settings,
            around.broker,
            Questions(around.metadata, self._asked),
            lambda _url: self._store,
            self._watcher,
            authority=around.authority,
            source=around.source,
            log_dirs=around.log_dirs,
            runtime=self._runtime,
            tuning=self._tuning,
        )
        self.agent = Agent(self.components)
        self._asked_leaders, self._passed = self._scheduler.now, 0
        self._runtime.thread(f"loop of {self.name}", self.agent.run).start()

    def kill(self) -> None:
        """End the process at once, if it runs."""
        if self.components is None or self._runtime is None or self._watcher is None:
            return
        self._runtime.kill()
        self.components.hold.close()
        self.disk.watches = None
        self._watcher.close()
        self.agent = self.components = None

    def crash(self, down: float) -> None:
        """Kill the agent as ``SIGKILL`` does; another one starts later."""
        if self.agent is not None:
            self.kill()
            self._scheduler.call_later(self._faults.felt(5 * down), self.start)

    def restart(self, down: float, limit: float) -> None:
        """Ask the agent to end, within ``limit`` seconds; another one starts later."""
        agent = self.agent
        if agent is not None:
            agent.stop()
            self._scheduler.call_later(limit, lambda: self.kill() if self.agent is agent else None)
            self._scheduler.call_later(self._faults.felt(limit + 5 * down), self.start)

    def reload(self) -> None:
        """Have the agent read its settings again."""
        agent, settings = self.agent, self._settings()
        if agent is not None:
            agent.soon(lambda: agent.reconfigure(settings, "agent.yaml"))

    def waits(self) -> tuple[str | None, set[tuple[TopicPartition, str]]]:
        """What the agent says that it waits for: as a whole, and for each partition with the kind of it."""
        if self.agent is None:
            return "there is no agent", set()
        said: dict[str, Any] = self.agent.waiting()
        partitions = {(TopicPartition(one["topic"], one["partition"]), one["kind"]) for one in said["partitions"]}
        return said["agent"], partitions

    def _died(self, name: str, error: BaseException) -> None:
        self._faults.tell(f"-- the thread {name!r} of {self.name} has ended: {type(error).__name__}: {error}")

    def _asked(self, what: str) -> None:
        """Who leads must be asked in time, however many other questions there are."""
        interval = self._tuning.metadata_interval.total_seconds()
        late = self._scheduler.now - self._asked_leaders - interval
        if what == "leaders":
            self._asked_leaders, self._passed = self._scheduler.now, 0
        elif late > _GRACE:
            self._passed += 1
            if self._passed == _MOST_PASSED:
                wrong = f"{_MOST_PASSED} questions for offsets were put before the one who leads, due {late:.3f} s ago"
                self._scheduler.fail(AssertionError(wrong))
