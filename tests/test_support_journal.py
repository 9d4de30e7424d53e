import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support import journal
from tests.support.inputs import Inputs
from tests.support.orphans import MARK
from tests.support.paths import ROOT
from tests.support.waiting import HUNG, wait_until

HOOKS = "pytest_collection_modifyitems, pytest_configure, pytest_deselected, pytest_testnodedown"
CONFTEST = f"from tests.conftest import {HOOKS}\nfrom tests.support.fixtures import tried\n"
LIGHT = {"PYTEST_ADDOPTS": "-p no:hypothesispytest -p no:anyio"}
"""Without the plugins that take most of the start of pytest."""
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
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    full: takes long\n    sampled: by the seed\n")
    return tmp_path


def run(project: Path, *options: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | LIGHT | {"TIDEMARK_JOURNAL": str(project / "journal.jsonl"), "PYTHONPATH": str(ROOT)}
    env.pop("PYTEST_XDIST_WORKER", None)
    command = [sys.executable, "-m", "pytest", "-q", *options]
    return subprocess.run(command, cwd=project, env=env, capture_output=True, text=True, timeout=HUNG, check=False)


def outcomes(project: Path) -> dict[str, str]:
    found = journal.read(project / "journal.jsonl", journal.of_this_run())
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


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["one process", "two processes"])
def test_long_tests_are_left_out_and_counted(
    project: Path, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TIDEMARK_FULL", raising=False)
    long = "import pytest\n\n@pytest.mark.full\ndef test_long():\n    raise AssertionError\n"
    sampled = '@pytest.mark.sampled(1)\n@pytest.mark.parametrize("n", range(3))\ndef test_sampled(n):\n    pass\n'
    (project / "tests" / "test_long.py").write_text(f"{long}\n{sampled}")
    (project / "mended").touch()
    told = run(project, *options)
    assert (told.returncode, "5 passed, 1 skipped, 3 deselected" in told.stdout) == (0, True), told.stdout
    assert journal.main([str(project / "journal.jsonl")]) == 0


def test_a_failed_test_is_named_and_run_again(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(project).returncode == 1
    assert journal.main([str(project / "journal.jsonl")]) == 1
    told = capsys.readouterr().out
    assert "failed: tests/test_four.py::test_of_four[2]" in told
    assert "Failed: not mended" in told
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


def line_of(test: str, outcome: str = "passed", inputs: str = "") -> str:
    entry = {"test": test, "inputs": inputs, "outcome": outcome, "seconds": 1, "tried": {}, "error": ""}
    return f"{json.dumps(entry)}\n"


def test_a_line_that_was_cut_off_counts_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text(f"{line_of('tests/a.py::test_a')}{line_of('tests/a.py::test_b')[:-3]}")
    assert journal.read(path, None).done == {"tests/a.py::test_a"}


def test_a_test_that_never_ran_fails_the_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TIDEMARK_FULL", raising=False)
    path = tmp_path / "journal.jsonl"
    collected = dict.fromkeys(["tests/a.py::test_a", "tests/a.py::test_b"], "")
    path.write_text(f"{line_of('tests/a.py::test_a')}{json.dumps({'collected': collected})}\n")
    assert journal.main([str(path)]) == 1
    assert "not run: tests/a.py::test_b" in capsys.readouterr().out


TREE = {
    "product.py": "one = 1",
    "README.md": "one",
    "tests/conftest.py": "from tests.support.fixtures import seed",
    "tests/support/fixtures.py": "seed = 1",
    "tests/support/unused.py": "seed = 1",
    "tests/test_all.py": "",
    "tests/part/data.json": "1",
    "tests/part/__init__.py": "",
    "tests/part/world.py": "from tests.support.ports import port",
    "tests/support/ports.py": "port = 1",
    "tests/part/script.py": "print(1)",
    "tests/part/test_world.py": "from tests.part.world import port",
    "tests/part/test_script.py": "PATH = 'script.py'",
    "tests/part/test_document.py": "PAGE = 'README.md'",
    "tests/part/test_module.py": "command = ['-m', 'tests.support.ports']",
}
PART = {f"tests/part/test_{name}.py" for name in ("world", "script", "document", "module")}
EVERY = {*PART, "tests/test_all.py"}


def make_repository(root: Path) -> None:
    def git(*arguments: str) -> None:
        command = ["git", "-c", "user.name=t", "-c", "user.email=t@localhost", *arguments]
        subprocess.run(command, cwd=root, check=True, capture_output=True)

    for name, text in TREE.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    git("init")
    git("add", "--all")
    git("commit", "-m", "one")


def test_what_was_noted_of_other_inputs_counts_for_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a result, nor that a test was collected that is gone by now."""
    make_repository(tmp_path)
    inputs = Inputs(tmp_path)
    path, test, now = tmp_path / "journal.jsonl", "tests/part/test_world.py", inputs.digest("tests/part/test_world.py")
    gone = {"collected": {f"{test}::test_c": "another"}}
    path.write_text(
        line_of(f"{test}::test_a", inputs=now)
        + line_of(f"{test}::test_b", "failed", "another")
        + f"{json.dumps(gone)}\n"
    )
    assert journal.read(path, inputs).done == {f"{test}::test_a"}
    monkeypatch.setattr(journal, "of_this_run", lambda: inputs)
    assert journal.main([str(path)]) == 0
    assert "test_b" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changed", "again"),
    [
        ("product.py", EVERY),
        ("tests/conftest.py", EVERY),
        ("tests/support/fixtures.py", EVERY),
        ("tests/part/data.json", EVERY),
        ("tests/part/__init__.py", EVERY),
        ("a new file", EVERY),
        ("tests/support/unused.py", {"tests/test_all.py"}),
        ("README.md", {"tests/test_all.py", "tests/part/test_document.py"}),
        ("tests/part/world.py", {"tests/test_all.py", "tests/part/test_world.py"}),
        ("tests/part/script.py", {"tests/test_all.py", "tests/part/test_script.py"}),
        ("tests/part/test_world.py", {"tests/test_all.py", "tests/part/test_world.py"}),
        ("tests/support/ports.py", {"tests/test_all.py", "tests/part/test_world.py", "tests/part/test_module.py"}),
    ],
)
def test_a_change_counts_for_the_files_that_depend_on_it(tmp_path: Path, changed: str, again: set[str]) -> None:
    make_repository(tmp_path)
    before = Inputs(tmp_path)
    (tmp_path / changed).write_text(TREE.get(changed, "") + "\n# changed")
    after = Inputs(tmp_path)
    assert {name for name in EVERY if before.digest(name) != after.digest(name)} == again
    if changed in TREE:
        (tmp_path / changed).write_text(TREE[changed])
        assert Inputs(tmp_path).digest("tests/test_all.py") == before.digest("tests/test_all.py")


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
    ours = {MARK, "PYTEST_XDIST_WORKER", "TIDEMARK_JOURNAL"}  # this session's, which the one started here must not meet
    env = {name: value for name, value in os.environ.items() if name not in ours} | LIGHT | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", "-q", *options]
    with (project / "out").open("wb") as out:
        session = subprocess.Popen(command, cwd=project, env=env, stdout=out, stderr=out)
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
