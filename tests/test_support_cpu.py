"""The CPU time of tests: what is counted, for which kind, and the budget of `make test`."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.cpu import COLLECTION, PROGRAMS, TESTS, CpuMeter
from tests.support.journal import BUDGET, Contents, Result, costs, main, over_budget, spent

BURN = """
import sys, time
while time.process_time() < 0.45:
    pass
print("done", flush=True)
sys.stdin.read()
"""


def burning() -> subprocess.Popen[bytes]:
    """A program that needs 0.45 s of CPU time, and then waits until its input ends."""
    child = subprocess.Popen([sys.executable, "-c", BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"done\n"
    return child


def test_what_lives_and_what_has_ended_counts_once(request: pytest.FixtureRequest) -> None:
    meter, item = CpuMeter(), request.node
    meter.pytest_collection_finish()
    first = meter.cost(item)
    assert first[COLLECTION] > 0
    with burning() as living:
        begin = time.process_time()
        while time.process_time() < begin + 0.2:
            pass
        meter.look()
        seen = meter.cost(item)
        living.communicate()
    with burning() as ended:
        ended.communicate()
    then = meter.cost(item)
    assert 0.4 <= seen[PROGRAMS] < 2
    assert seen[TESTS] >= 0.2
    assert COLLECTION not in seen
    assert 0.4 <= then[PROGRAMS] < 0.8, "what the first one has needed is known already"
    assert then["loop"] > 0


def test_a_budget_is_in_loops_and_names_what_to_move(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow, quick = "tests/spark/test_a.py::test_slow", "tests/consumer/test_b.py::test_quick"
    contents = Contents(
        {
            slow: Result(cpu={"spark": 30.0, TESTS: 2.0, "loop": 0.2}),
            quick: Result(cpu={TESTS: 1.0, COLLECTION: 4.0, "loop": 0.1}),
        },
        sharing=[{COLLECTION: 1.0, "loop": 0.1}],
    )
    found = spent(contents)
    assert found.total == 150 + 10 + 10 + 40 + 10
    assert found.folders == {"spark": 160, "consumer": 10}
    assert found.loops == {"spark": 150, TESTS: 20, COLLECTION: 50}
    assert over_budget(found, 200) == ""
    told = over_budget(found, 180)
    assert "220 loops" in told
    assert told.splitlines()[1].split() == ["160", slow]
    assert costs(found).splitlines()[0] == "CPU time: 38 s, which are 220 loops of 173 ms"

    line: dict[str, Any] = {"test": slow, "inputs": "", "outcome": "passed", "seconds": 1.0, "tried": {}, "error": ""}
    journal = tmp_path / "journal"
    journal.write_text(json.dumps({**line, "cpu": {TESTS: 1.3 * BUDGET, "loop": 1.0}}) + "\n")
    assert main([str(journal)]) == 0
    assert main(["--budget", str(journal)]) == 1
    assert slow in capsys.readouterr().out.splitlines()[-1]
    journal.write_text(json.dumps(line) + "\n")
    assert main(["--budget", str(journal)]) == 0, "of an older run"
