"""What must hold whichever thread comes first, and however long storage keeps a consumer waiting."""

from __future__ import annotations

from typing import Any

import pytest

from tests.consumer.test_tiers import Made
from tests.consumer.world import World
from tidemark.consumer import Mode
from tidemark.consumer.bell import Bell
from tidemark.errors import WakeupError


@pytest.fixture
def made(local_world: World) -> Made:
    """Kafka has offsets 60 to 99 of a hundred, storage 0 to 19."""
    found = Made(local_world, f"race-{local_world.folder.name}", 100, 60)
    found.segment(0, 20)
    found.raw.publish()
    return found


def test_a_wakeup_before_the_wait_begins_is_not_slept_through(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    with made.consumer(Mode.REMOTE_ONLY, 20) as consumer:
        assert consumer.poll(timeout_ms=200) == {}

        def reset(*_: Any) -> None:
            consumer.wakeup()

        slept: list[int] = []
        wait = Bell.wait

        def checked(self: Bell, heard: int, seconds: float) -> None:
            if self.rings == heard:
                slept.append(heard)
            wait(self, heard, min(seconds, 0.1))

        monkeypatch.setattr(Bell, "wait", checked)
        monkeypatch.setattr(consumer._fetcher, "validate_offsets_if_needed", reset)
        with pytest.raises(WakeupError):
            consumer.poll(timeout_ms=60_000)
        assert slept == []
