"""What confirms that a broker has what the quorum has committed: by what the controller says of voters and observers.

Real clusters are asked in ``faults/test_real_authority.py`` and ``test_zookeeper.py``.
"""

from __future__ import annotations

from typing import Any

import pytest

from uploader_agent.broker.admin import BrokerUnavailable
from uploader_agent.broker.authority import QuorumAuthority


class Told(QuorumAuthority):
    """Of broker 4, beside three voters that lead and have fetched as ``said`` has it."""

    def __init__(self, **said: Any) -> None:
        super().__init__(4, _nobody)
        self.said = {
            "leader_id": 1,
            "leader_epoch": 7,
            "high_watermark": 100,
            "end": 100,
            "fetched": (0, 50, 50),
            **said,
        }

    def _quorum(self) -> Any:
        voters = [
            {"replica_id": number, "log_end_offset": 100, "last_fetch_timestamp": at}
            for number, at in enumerate(self.said["fetched"], 1)
        ]
        observers = [{"replica_id": 4, "log_end_offset": self.said["end"], "last_fetch_timestamp": 50}]
        return {**self.said, "current_voters": voters, "observers": observers}


def _nobody() -> Any:
    raise AssertionError("nobody is asked")


@pytest.mark.parametrize(
    ("later", "confirmed"),
    [
        ({"fetched": (0, 60, 60)}, True),
        ({"fetched": (0, 50, 60)}, True),
        ({"fetched": (0, 50, 50)}, False),
        ({"fetched": (99, 50, 50)}, False),
        ({"fetched": (0, 60, 60), "end": 99}, False),
        ({"fetched": (0, 60, 60, 60)}, True),
        ({"fetched": (0, 60, 50, 60)}, False),
        ({"fetched": (0, 60, 60), "leader_epoch": 8}, None),
        ({"fetched": (0, 60, 60), "leader_id": 2}, None),
    ],
    ids=str,
)
def test_only_a_leader_that_a_majority_still_fetches_from_confirms(
    later: dict[str, Any], confirmed: bool | None
) -> None:
    """One that was deposed may not know it; of a voter that is new nothing is known since."""
    mark = Told().mark()
    assert Told(**later).confirms(mark) is confirmed
    with pytest.raises(BrokerUnavailable, match="high watermark"):
        Told(high_watermark=-1).mark()
