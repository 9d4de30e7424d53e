"""A worker that carries out the tasks of a state's run, as it meets them: a fresh process."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.spark.state.replay import LEAF
from tests.spark.state.test_schedules import CHANGES, COLUMNS, STATE, MaxwellSchedule, OrderedSchedule
from tests.spark.world import Acting, World, in_process
from tests.support.paths import ROOT
from tests.tidemark.kafka_log.build import T0, Record, batch
from tidemark.table.state_table import StateTable
from tidemark_spark.state.model import StateJob
from tidemark_spark.state.run import StateRun, run_state

CARRY_OUT = """
import pickle, sys
for work, job, task in pickle.load(open(sys.argv[1], "rb")):
    work(job, task)
print("pandas" in sys.modules)
"""
TOPICS = (
    ((STATE,), (b"1", b"2", None, None, b"3")),
    ((OrderedSchedule.settings_of[1][0], COLUMNS), OrderedSchedule.values),
    (("state: {envelope: maxwell, key: [id, name]}", CHANGES), MaxwellSchedule.values[1:]),
)


def test_a_worker_loads_no_pandas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take 0.2 s, and 30 to 50 MB in each worker."""
    monkeypatch.setattr(StateRun, "delete", lambda *_: None)  # the tasks are repeated below
    carried_out: list[tuple[Any, ...]] = []

    @Acting
    def rounds(work: Any, job: StateJob, tasks: Sequence[Any]) -> list[Any]:
        carried_out.extend((work, job, task) for task in tasks)
        return in_process.on_each(work, job, tasks)

    for number, (settings, values) in enumerate(TOPICS):
        world = World(tmp_path / str(number), *settings)
        for partition in range(2):
            records = [Record(at, T0, b"key-%d" % (at // 2), value) for at, value in enumerate(values)]
            world.raw.segment([batch(0, records)], partition)
            world.land()
            assert run_state(StateTable.open(world.table), rounds, leaf=LEAF).rows
    (tmp_path / "tasks").write_bytes(pickle.dumps(carried_out))
    folders = os.pathsep.join(str(ROOT / folder) for folder in ("include", "spark"))
    command = [sys.executable, "-c", CARRY_OUT, str(tmp_path / "tasks")]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": folders}
    )
    assert (done.stdout.strip(), done.stderr) == ("False", "")
