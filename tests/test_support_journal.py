import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support import journal
from tests.support.orphans import MARK
from tests.support.paths import ROOT
from tests.support.waiting import HUNG, wait_until

CONFTEST = "from tests.conftest import pytest_configure\nfrom tests.support.fixtures import tried\n"
TESTS = """
import os, pathlib, pytest

@pytest.mark.parametrize("number", range(4))
def test_of_four(number, tried):
    tried("numbers", number)
    if number == 2 and not pathlib.Path("mended").exists():
        os._exit(9) if pathlib.Path("dies").exists() else pytest.fail("not mended")

def test_that_skips():
    pytest.skip("not here")
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_four.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def run(project: Path, *options: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"TIDEMARK_JOURNAL": str(project / "journal.jsonl"), "PYTHONPATH": str(ROOT)}
    env.pop("PYTEST_XDIST_WORKER", None)
    command = [sys.executable, "-m", "pytest", "-q", *options]
    return subprocess.run(command, cwd=project, env=env, capture_output=True, text=True, timeout=HUNG, check=False)


def outcomes(project: Path) -> dict[str, str]:
    found = journal.read(project / "journal.jsonl")
    return {nodeid.rpartition("::")[2]: result.outcome for nodeid, result in found.results.items()}


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["one process", "two processes"])
def test_a_run_that_was_killed_goes_on_where_it_stopped(project: Path, options: tuple[str, ...]) -> None:
    (project / "dies").touch()
    run(project, *options)
    before = outcomes(project)
    assert "test_of_four[2]" not in before
    assert journal.main([str(project / "journal.jsonl")]) == 1

    (project / "mended").touch()
    again = run(project, *options)
    assert f"{5 - len(before)} deselected" in again.stdout or len(before) < 5
    assert again.returncode == 0
    assert outcomes(project) == {f"test_of_four[{n}]": "passed" for n in range(4)} | {"test_that_skips": "skipped"}
    assert run(project, *options).returncode == 5, "nothing is left to run"
    assert journal.main([str(project / "journal.jsonl")]) == 0


def test_a_failed_test_is_named_and_run_again(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(project).returncode == 1
    assert journal.main([str(project / "journal.jsonl")]) == 1
    assert "failed: tests/test_four.py::test_of_four[2]" in capsys.readouterr().out
    (project / "mended").touch()
    assert "1 passed, 4 deselected" in run(project).stdout
    assert journal.main([str(project / "journal.jsonl")]) == 0


def test_the_report_has_what_was_tried_by_kind_and_the_slowest(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "mended").touch()
    run(project)
    journal.main([str(project / "journal.jsonl")])
    lines = capsys.readouterr().out.splitlines()
    assert "               6  numbers" in lines
    assert any(line.endswith("tests/test_four.py::test_of_four[3]") for line in lines[: journal._SLOWEST + 1])
    assert lines[-4].split() == ["all", "4", "1", "0", "0"]


def test_a_line_that_was_cut_off_counts_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    line = json.dumps({"test": "tests/a.py::test_a", "outcome": "passed", "seconds": 1, "tried": {}})
    path.write_text(f"{line}\n{line.replace('test_a', 'test_b')}"[:-3])
    assert journal.read(path).done == {"tests/a.py::test_a"}


def test_a_test_that_never_ran_fails_the_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "journal.jsonl"
    line = {"test": "tests/a.py::test_a", "outcome": "passed", "seconds": 1, "tried": {}}
    path.write_text(f"{json.dumps(line)}\n{json.dumps({'collected': ['tests/a.py::test_a', 'tests/a.py::test_b']})}\n")
    assert journal.main([str(path)]) == 1
    assert "not run: tests/a.py::test_b" in capsys.readouterr().out


def test_the_tree_s_digest_is_that_of_its_content(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        command = ["git", "-c", "user.name=t", "-c", "user.email=t@localhost", *arguments]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)

    git("init")
    (tmp_path / "a").write_text("one")
    git("add", "a")
    git("commit", "-m", "one")
    committed = journal.tree_digest(tmp_path)
    (tmp_path / "a").write_text("two")
    changed = journal.tree_digest(tmp_path)
    (tmp_path / "b").write_text("new")
    assert len({committed, changed, journal.tree_digest(tmp_path)}) == 3
    (tmp_path / "b").unlink()
    (tmp_path / "a").write_text("one")
    assert journal.tree_digest(tmp_path) == committed


CHILD = """
import subprocess, sys, pathlib

GRANDCHILD = "import time; time.sleep(600)"
CHILD = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]], start_new_session=True).wait()"

def test_starts_a_server_and_never_ends():
    server = subprocess.Popen([sys.executable, "-c", CHILD, GRANDCHILD], start_new_session=True)
    pathlib.Path("server").write_text(str(server.pid))
    server.wait()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["one process", "xdist"])
def test_what_tests_have_started_ends_with_them(
    project: Path, number: signal.Signals, options: tuple[str, ...]
) -> None:
    (project / "tests" / "test_four.py").write_text(CHILD)
    env = {name: value for name, value in os.environ.items() if name not in {MARK, "PYTEST_XDIST_WORKER"}}
    command = [sys.executable, "-m", "pytest", "-q", *options]
    with (project / "out").open("wb") as out:
        session = subprocess.Popen(command, cwd=project, env=env | {"PYTHONPATH": str(ROOT)}, stdout=out, stderr=out)
    try:
        started = project / "server"
        wait_until(lambda: started.exists() and bool(started.read_text()), what="the test's server")
        server = psutil.Process(int(started.read_text()))
        wait_until(lambda: bool(server.children()), what="the server's child")
        family = [server, *server.children()]
    finally:
        session.send_signal(number)
        session.wait(HUNG)
    gone, left = psutil.wait_procs(family, timeout=HUNG)
    assert not left
    assert len(gone) == 2
