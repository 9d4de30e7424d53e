"""Jobs as forks of one host: with real processes, and programs that write down what they see."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import psutil
import pytest
from airflow.sdk.exceptions import AirflowException

from tests.support.hosts import own_hosts
from tests.support.waiting import wait_until
from tidemark_airflow.submitters.child_processes import ForkedJob

SEEN = """\
import json, os, sys
import counted
if __name__ == "__main__":
    print(json.dumps({"pid": os.getpid(), "host": os.getppid(), "argv": sys.argv, "path": sys.path[0],
        "environment": dict(os.environ), "directory": os.getcwd(), "stdin": sys.stdin.read()}), flush=True)
    sys.exit(os.environ.get("SAY") or int(os.environ.get("CODE", "0")))
"""
COUNTED = """\
import os
with open(os.environ["COUNTS"], "a") as counts:
    counts.write(f"{os.getpid()}\\n")
"""
STUBBORN = """\
import os, signal, sys, time
if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = os.fork()
    if child:
        print(os.getpid(), child, flush=True)
    time.sleep(600)
"""
SLEEPY = """\
import os, time
if __name__ == "__main__":
    print(os.getpid(), flush=True)
    time.sleep(600)
"""


class Hosted:
    """Programs, and the variables of their host."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.counts = folder / "counts"
        for name, text in (("seen", SEEN), ("counted", COUNTED), ("stubborn", STUBBORN), ("sleepy", SLEEPY)):
            (folder / f"{name}.py").write_text(text)
        marks = {name: value for name, value in os.environ.items() if name.startswith("TIDEMARK_TEST")}
        path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
        self.common = {**marks, "PATH": os.environ["PATH"], "PYTHONPATH": path, "COUNTS": str(self.counts)}

    def start(self, program: str, *arguments: str, **more: str) -> tuple[ForkedJob, TextIO]:
        """The job, and the stream of its output."""
        job = ForkedJob(sys.executable, self.common)
        return job, job.start(str(self.folder / f"{program}.py"), arguments, {**self.common, **more})

    def run(self, *arguments: str, **more: str) -> tuple[dict[str, Any], str, int]:
        """What ``seen`` saw, what it said after that, and its exit code."""
        job, stream = self.start("seen", *arguments, **more)
        with stream:
            first, *rest = stream.read().splitlines()
        return json.loads(first), "".join(rest), job.code()


@pytest.fixture(scope="module")
def hosted() -> Iterator[Hosted]:
    with own_hosts() as folder:
        yield Hosted(folder)


def test_a_job_runs_like_a_program_of_its_own(hosted: Hosted) -> None:
    seen, said, code = hosted.run("--topic", "a b", CODE="7", TOKEN="secret")
    assert code == 7
    assert not said
    assert seen["argv"] == [str(hosted.folder / "seen.py"), "--topic", "a b"]
    assert seen["path"] == str(hosted.folder)
    assert seen["directory"] == str(Path.cwd())
    assert seen["environment"] == {**hosted.common, "CODE": "7", "TOKEN": "secret"}
    assert seen["stdin"] == ""

    seen, said, code = hosted.run(SAY="what is wrong")
    assert (code, said) == (1, "what is wrong")
    assert "TOKEN" not in seen["environment"], "of the job before"


def test_jobs_of_one_host_import_what_they_need_once(hosted: Hosted) -> None:
    jobs = [hosted.run()[0] for _ in range(3)]
    [host] = {job["host"] for job in jobs}
    assert len({job["pid"] for job in jobs}) == 3
    assert hosted.counts.read_text().split() == [str(host)], "imported by the host, and by no job"


def test_two_jobs_run_at_once(hosted: Hosted) -> None:
    (first, out), (second, out2) = hosted.start("sleepy"), hosted.start("sleepy")
    with out, out2:
        pids = [int(out.readline()), int(out2.readline())]
        assert all(psutil.pid_exists(pid) for pid in pids)
        second.end()
        assert second.code() == -signal.SIGTERM
        assert psutil.pid_exists(pids[0])
        first.end()
        assert first.code() == -signal.SIGTERM


@pytest.mark.parametrize("how", ["ended", "forgotten"])
def test_all_processes_of_a_job_end_with_its_task(hosted: Hosted, how: str) -> None:
    job, stream = hosted.start("stubborn")
    with stream:
        pids = [int(pid) for pid in stream.readline().split()]
        if how == "ended":
            job.end()
            assert job.code() == -signal.SIGKILL
        del job  # as when the task's process was killed
        wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids), what="the job to be gone")


def test_a_killed_host_fails_the_task_and_another_one_takes_the_next_job(hosted: Hosted) -> None:
    host = hosted.run()[0]["host"]
    job, stream = hosted.start("sleepy")
    with stream:
        pid = int(stream.readline())
        os.kill(host, signal.SIGKILL)
        with pytest.raises(AirflowException, match="the host of the job was killed"):
            job.code()
        os.kill(pid, signal.SIGKILL)
    assert hosted.run()[0]["host"] != host


def test_the_error_of_a_host_that_cannot_start_is_told(hosted: Hosted) -> None:
    job = ForkedJob(sys.executable, {"PYTHONPATH": "/nowhere", "PYTHONHOME": "/nowhere"})
    with pytest.raises(AirflowException, match=r"job_host takes no job; its last lines:\n(.|\n)*Python"):
        job.start("any.py", [], {})


def test_a_folder_that_others_may_enter_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / f"tidemark-hosts-{os.getuid()}").mkdir()
    (tmp_path / f"tidemark-hosts-{os.getuid()}").chmod(0o755)
    folder = Path(tempfile.mkdtemp(prefix="h-"))
    shutil.move(tmp_path / f"tidemark-hosts-{os.getuid()}", folder)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with pytest.raises(AirflowException, match="must be a folder of this user alone, mode 0700"):
        ForkedJob(sys.executable, {})
    monkeypatch.setattr(tempfile, "tempdir", str(folder / ("x" * 80)))
    with pytest.raises(AirflowException, match="set TMPDIR to a shorter one"):
        ForkedJob(sys.executable, {})
    shutil.rmtree(folder)
