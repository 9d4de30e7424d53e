"""The values of the agent that its authors have tuned, and nobody has to set."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from tidemark.backoff import Backoff


@dataclass(frozen=True, slots=True)
class AgentTuning:
    """The values, each with its reason. Tests, whose brokers do little and which cannot wait, pass others."""

    scan_interval: timedelta = timedelta(seconds=30)
    """Time between two full looks at the disk. Inotify tells of changes at once; a scan finds what it has missed."""

    metadata_interval: timedelta = timedelta(seconds=10)
    """Time between two questions to the broker who leads. One costs little, and a change is hinted by the disk too."""

    index_interval: timedelta = timedelta(seconds=10)
    """Least time between two watermark indexes with news: readers learn of new data so much later at most.

    It is less where a topic's freshness is below a minute, see ``IndexPublisher.interval``.
    """

    index_idle_interval: timedelta = timedelta(minutes=1)
    """Time after which the watermark index is written without news, which tells a quiet agent from a stopped one."""

    retry_initial: timedelta = timedelta(milliseconds=200)
    """Pause after the first failure of a partition; each further failure in a row doubles it."""

    retry_cap: timedelta = timedelta(seconds=30)
    """Longest pause after a failure: a store that works again is used again so soon."""

    fill_interval: timedelta = timedelta(minutes=1)
    """Time between two looks for gaps of other leaders, far below the 5 minutes between two runs of retention."""

    stuck_after: timedelta = timedelta(minutes=10)
    """Time without progress after which the agent is unhealthy: 1 GiB takes less, down to 2 MiB a second."""

    log_repeat: timedelta = timedelta(minutes=5)
    """Time after which an error that lasts is logged again: seldom enough to read, often enough to be found."""

    hold_max_age: timedelta = timedelta(days=1)
    """Time for which a segment that retention has deleted is held: a person can mend a store within a day."""

    hold_min_free: float = 0.05
    """Share of a disk that held segments leave free: a broker whose disk is full stops."""

    fetch_segment: int = 64 << 20
    """Bytes of a fetching agent's segment: large enough for few objects, and soon full where little is written."""

    @property
    def retry_backoff(self) -> Backoff:
        """The pauses after the failures of a partition."""
        return Backoff(self.retry_initial.total_seconds(), self.retry_cap.total_seconds())


STANDARD: Final = AgentTuning()
"""The values outside of tests."""
