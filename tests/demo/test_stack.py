"""The files that the demo's agents are started with."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from demo import processes, stack
from demo.steps import Steps
from uploader_agent.settings import AgentSettings, load_settings


def settings_of_agents(home: Path, monkeypatch: pytest.MonkeyPatch, *, fetch: bool) -> list[AgentSettings]:
    """The settings of the agents of a demo in ``home``, none of which is started."""
    for module in (processes, stack):
        monkeypatch.setattr(module, "HOME", home)
    made = stack.Stack(Steps(), fetch=fetch)
    for agent in made.agents:
        agent.process = SimpleNamespace(start=lambda: None, wait_until=lambda ready: None)  # type: ignore[assignment]
        agent.start(made.source(agent.number), made.deployment)
    return [load_settings(home / f"agent-{agent.number}.yaml") for agent in made.agents]


def test_agents_that_fetch_are_all_slots_with_a_spool_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slots = [one.fetch for one in settings_of_agents(tmp_path, monkeypatch, fetch=True)]
    assert [(slot.slot, slot.slots) for slot in slots if slot] == [(0, 2), (1, 2)]
    assert len({slot.spool for slot in slots if slot}) == 2


def test_agents_read_the_disk_of_a_broker_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agents = settings_of_agents(tmp_path, monkeypatch, fetch=False)
    assert len({one.broker.properties for one in agents if one.broker}) == 2
