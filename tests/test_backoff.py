"""The doubling pauses of everything that is tried again, as tables: what each user of one :class:`Backoff` waits.

The pauses of the DAGs and of the scan of indexes are in the tests of `tidemark_airflow`.
"""

from __future__ import annotations

from itertools import accumulate, repeat

import pytest

from tidemark.backoff import Backoff
from tidemark.consumer.tier_selection import LONGEST_REST_SECONDS
from tidemark.store import retrying
from tidemark_spark.live import landing
from tidemark_spark.mirror import mirror
from tidemark_spark.run import commit
from uploader_agent.packing.head_maintenance import LOOK_BACKOFF
from uploader_agent.packing.thread import TICK_BACKOFF
from uploader_agent.partitions.jobs import QUESTION_BACKOFF
from uploader_agent.tuning import STANDARD

PAUSES: dict[str, tuple[Backoff, list[float]]] = {
    "reads of the store": (retrying.PAUSES, [0.2, 0.4, 0.8, 1.6, 3.2, 5, 5]),
    "jobs and packs of a partition": (STANDARD.retry_backoff, [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30]),
    "questions for offsets": (QUESTION_BACKOFF, [0.25, 0.5, 1, 2, 4, 8, 10, 10]),
    "ticks": (TICK_BACKOFF, [1, 2, 4, 8, 10, 10]),
    "looks at the entries of a head": (LOOK_BACKOFF, [15, 30, 60, 120, 240, 480, 960, 1800, 1800]),
    "storage that a consumer cannot read": (Backoff(5, LONGEST_REST_SECONDS), [5, 10, 20, 40, 60, 60]),
    "storage, looked at seldom": (Backoff(90, LONGEST_REST_SECONDS), [90, 90]),
    "commits of a run": (commit._BACKOFF, [0.1, 0.2, 0.4, 0.8, 1.6, 2, 2]),
    "commits of the mirror": (mirror._BACKOFF, [0.1, 0.2, 0.4, 0.8, 1.6, 2, 2]),
    "topics that land live": (landing.BACKOFF, [30, 60, 120, 240, 480, 900, 900]),
}


@pytest.mark.parametrize("user", PAUSES)
def test_pauses_double_up_to_the_longest(user: str) -> None:
    backoff, pauses = PAUSES[user]
    assert [backoff.after(number) for number in range(1, len(pauses) + 1)] == pauses
    one_by_one = accumulate(repeat(0.0, len(pauses)), lambda pause, _: backoff.longer(pause), initial=0.0)
    assert [*one_by_one][1:] == pauses
    assert backoff.after(10_000) == pauses[-1], "the number of failures has no bound"


def test_a_read_waits_for_a_random_time_of_at_least_half_the_pause() -> None:
    waited: list[float] = []

    class Noting(retrying.Retry):
        def wait(self, seconds: float) -> None:
            waited.append(seconds)

    for attempt in range(1, 7):
        for _ in range(20):
            Noting().pause(attempt)
    longest = [pause for pause in (0.2, 0.4, 0.8, 1.6, 3.2, 5.0) for _ in range(20)]
    assert all(most / 2 <= seconds <= most for seconds, most in zip(waited, longest, strict=True))
    assert len(set(waited)) > 6
