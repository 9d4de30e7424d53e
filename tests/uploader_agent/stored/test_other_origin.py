"""Two agents of different origins never both seal one compacted log: the one that is beside waits long enough."""

from __future__ import annotations

from uploader_agent.stored.other_origin import SILENCE
from uploader_agent.tuning import STANDARD


def test_no_running_agent_is_silent_for_as_long_as_counts_as_stopped() -> None:
    """It looks every ``index_interval``, and then writes if its last index is ``index_idle_interval`` old."""
    longest = STANDARD.index_idle_interval + STANDARD.index_interval
    assert 2 * longest < SILENCE, "half of it is for a store that takes long"
