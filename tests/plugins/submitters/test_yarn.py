"""What spark-submit and the ResourceManager are asked for a job on YARN, and what Tidemark makes of the answers.

The ResourceManager is a server of the test that answers as YARN 3.5.0 does; ``test_yarn_cluster.py`` has a real one.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from airflow.sdk.exceptions import AirflowException

from tests.plugins.submitters.platform_server import JOB, THERE, Kept, Platform, Request, ended, run, use, waiting_for
from tidemark.errors import ConfigError
from tidemark_airflow.submitters import yarn as yarn_module
from tidemark_airflow.submitters.base import SparkJob
from tidemark_airflow.submitters.child_processes import SparkSubmit
from tidemark_airflow.submitters.choice import submitter
from tidemark_airflow.submitters.yarn import YarnApplication

# The provider leaves its child and the pipe to it to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <(_io.FileIO|function Popen):pytest.PytestUnraisableExceptionWarning",
    "ignore:subprocess .* is still running:ResourceWarning",
)

SUBMIT = """\
#!{python}
import json, os, pathlib, sys
pathlib.Path({path!r}).write_text(json.dumps([sys.argv[1:], dict(os.environ)]))
sys.exit({code})
"""
OLD, NEW, LATER = (f"application_1795508227785_000{number}" for number in (1, 2, 3))
INFO = "/ws/v1/cluster/info"
APPS = "/ws/v1/cluster/apps"


def application(app_id: str, state: str = "RUNNING", final: str = "UNDEFINED", **more: Any) -> dict[str, Any]:
    """As the REST API has it."""
    return {"id": app_id, "state": state, "finalStatus": final, "startedTime": 1795508253084, "diagnostics": "", **more}


class Yarn:
    """A ResourceManager and a spark-submit: ``there`` are the applications, ``comes`` those after a submission."""

    def __init__(self, platform: Platform, folder: Path) -> None:
        self.platform, self.called, self._submit = platform, folder / "called", folder / "spark-submit"
        self.there: list[dict[str, Any]] = []
        self.comes = [application(NEW)]
        self.then: list[dict[str, Any] | int] = [
            application(NEW, "FINISHED", "SUCCEEDED", trackingUrl="http://rm/new/")
        ]
        """What each look at an application finds, or the status without an answer; the last one stays."""
        self.starts = False
        self.answers_while_starting = 0
        self.submit_ends(0)
        platform.answer = self.answer

    def submit_ends(self, code: int) -> None:
        self._submit.write_text(SUBMIT.format(python=sys.executable, path=str(self.called), code=code))
        self._submit.chmod(0o755)

    @property
    def submitted(self) -> tuple[list[str], dict[str, str]]:
        """The arguments and the environment of spark-submit."""
        arguments, environment = json.loads(self.called.read_text())
        return arguments, environment

    @property
    def killed(self) -> list[str]:
        return [one.path.split("/")[-2] for one in self.platform.sent("PUT") if one.body == {"state": "KILLED"}]

    def answer(self, asked: Request) -> tuple[int, Any]:
        """The ResourceManager's."""
        path = urlsplit(asked.path).path
        if asked.method == "PUT":
            return 202, asked.body
        if path == INFO:
            self.starts = self.answers_while_starting > 0
            self.answers_while_starting -= 1
            return 200, {"clusterInfo": {"haState": "INITIALIZING" if self.starts else "ACTIVE"}}
        if self.starts:
            return (200, {"apps": {}}) if path == APPS else (404, {})
        if path == APPS:
            found = [*self.there, *(self.comes if self.called.exists() else [])]
            return 200, {"apps": {"app": found} if found else {}}
        now = self.then.pop(0) if len(self.then) > 1 else self.then[0]
        if isinstance(now, int):
            return now, {"RemoteException": {"exception": "NotFoundException"}}
        return 200, {"app": now}


@pytest.fixture
def yarn(platform: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Yarn]:
    made = Yarn(platform, tmp_path)
    monkeypatch.setenv("AIRFLOW__TIDEMARK__SPARK_SUBMIT", str(tmp_path / "spark-submit"))
    connect(monkeypatch, tmp_path, platform)
    yield made
    gc.collect()


def connect(monkeypatch: pytest.MonkeyPatch, folder: Path, platform: Platform, **more: Any) -> None:
    template: dict[str, Any] = {
        "spark.executor.memory": "1g",
        "spark.executor.instances": 4,
        "spark.speculation": False,
    }
    template["spark.yarn.appMasterEnv.PYSPARK_PYTHON"] = "./environment/bin/python"
    extra = {"deploy-mode": "cluster", "queue": "batch", "yarn_resourcemanager_webapp_address": platform.url, **more}
    use(monkeypatch, folder, template, conn_type="spark", host="yarn", login="etl", extra=extra)


def test_spark_submit_is_asked_for_an_application(yarn: Yarn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    (python_beside := yarn.called.with_name("python")).touch()  # by which a spark-submit from PyPI finds Spark
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", "key-of-airflow")
    yarn.then.insert(0, application(NEW, "ACCEPTED"))
    kept = Kept()
    assert run(kept) == "http://rm/new/"
    assert kept.written == [NEW, None]
    arguments, environment = yarn.submitted
    [tag] = [one.removeprefix("spark.yarn.tags=") for one in arguments if one.startswith("spark.yarn.tags=")]
    python = [
        f"spark.yarn.appMasterEnv.PYSPARK_{name}=./environment/bin/python" for name in ("DRIVER_PYTHON", "PYTHON")
    ]
    settings = [python[0], "spark.executor.instances=4", "spark.executor.memory=1g", "spark.speculation=false"]
    settings += [python[1], f"spark.yarn.tags={tag}", "spark.yarn.submit.waitAppCompletion=false"]
    assert arguments == [
        *("--master", "yarn"),
        *(part for one in settings for part in ("--conf", one)),
        *("--name", JOB.name, "--queue", "batch", "--deploy-mode", "cluster"),
        *("s3://code/jobs/run_plan.py", *THERE),
    ]
    assert environment["HADOOP_CONF_DIR"] == "/etc/hadoop"
    assert environment["PYSPARK_PYTHON"] == str(python_beside)
    assert not [name for name in environment if name.startswith("AIRFLOW")]
    asked = [urlsplit(one.path) for one in yarn.platform.sent("GET")]
    queries = [parse_qs(one.query) for one in asked if one.path == APPS]
    assert queries == [{"user.name": ["etl"], "applicationTags": [tag]}] * 2
    assert {parse_qs(one.query)["user.name"][0] for one in asked} == {"etl"}


def test_a_retry_waits_for_an_application_that_nobody_saw_start(yarn: Yarn) -> None:
    yarn.there = [application(OLD, "FAILED", "FAILED"), application(NEW, "ACCEPTED")]
    kept = Kept()
    run(kept)
    assert not yarn.called.exists()
    assert kept.written == [NEW, None]


def test_one_that_has_ended_is_submitted_again(yarn: Yarn) -> None:
    yarn.there = [application(OLD, "FINISHED", "SUCCEEDED")]
    kept = Kept()
    run(kept)
    assert kept.written == [NEW, None]


def test_the_tag_is_the_same_for_all_tries_of_a_task_with_the_same_arguments(yarn: Yarn) -> None:
    def tag(job: SparkJob) -> str:
        run(Kept(), job)
        yarn.called.unlink()
        queries = [parse_qs(urlsplit(one.path).query) for one in yarn.platform.sent("GET")]
        return [one["applicationTags"][0] for one in queries if "applicationTags" in one][-1]

    first = tag(JOB)
    assert first == first.lower()
    assert tag(JOB._replace(token="that of another try")) == first
    others = JOB._replace(task="dag/another run/task/-1"), JOB._replace(arguments=(*JOB.arguments, "--plan", "other"))
    assert len({first, *map(tag, others)}) == 3


@pytest.mark.parametrize("accepted", [True, False])
def test_a_submission_that_fails_counts_if_yarn_has_it(yarn: Yarn, accepted: bool) -> None:
    yarn.submit_ends(1)
    kept = Kept()
    if not accepted:
        yarn.comes = []
        with pytest.raises(AirflowException, match="Error code is: 1"):
            run(kept)
        return
    run(kept)
    assert kept.written == [NEW, None]


def test_a_submission_that_yarn_does_not_have_is_an_error(yarn: Yarn) -> None:
    yarn.comes = []
    with pytest.raises(AirflowException, match="YARN has no application tagged tidemark-"):
        run(Kept())


def test_of_two_that_were_submitted_at_once_the_first_stays(yarn: Yarn) -> None:
    yarn.comes = [application(LATER, startedTime=1795508253085), application(NEW)]
    kept = Kept()
    run(kept)
    assert kept.written == [NEW, None]
    assert yarn.killed == [LATER]


@pytest.mark.parametrize(
    ("last", "words"),
    [
        (application(NEW, "FINISHED", "FAILED", diagnostics="exitCode 2"), "failed: FINISHED: FAILED: exitCode 2"),
        (application(NEW, "KILLED", "KILLED"), "failed: KILLED"),
        (404, "unknown: the ResourceManager has no such application"),
    ],
)
def test_an_application_that_fails_or_is_gone_fails_the_task(yarn: Yarn, last: Any, words: str) -> None:
    yarn.then = [application(NEW), last]
    with pytest.raises(AirflowException, match=f"run_plan.py, job {NEW}: {words}"):
        run(Kept())


def test_a_resource_manager_that_restarts_is_waited_for(yarn: Yarn, monkeypatch: pytest.MonkeyPatch) -> None:
    yarn.then[:0] = [application(NEW), 503, 503]
    run(Kept())
    yarn.called.unlink()
    yarn.then = [503]
    monkeypatch.setattr(yarn_module, "SILENCE_SECONDS", -1.0)
    with pytest.raises(AirflowException, match=r"the ResourceManager at .* does not answer"):
        run(Kept())


def test_a_resource_manager_that_has_not_read_its_state_is_not_believed(yarn: Yarn) -> None:
    yarn.there = [application(NEW)]
    yarn.answers_while_starting = 1
    with pytest.raises(AirflowException, match="starts"):
        run(Kept())
    yarn.answers_while_starting = 2
    kept = Kept(NEW)
    run(kept)
    assert kept.written == [None]
    assert not yarn.called.exists()


def test_a_task_that_is_killed_ends_its_application(yarn: Yarn) -> None:
    yarn.then = [application(NEW)]
    with submitter(JOB.program, {}) as made:
        assert made.run(JOB, Kept()) == NEW
        made.end()
    assert yarn.killed == [NEW]


def test_a_task_that_is_ended_while_it_waits_ends_its_application(yarn: Yarn, tmp_path: Path) -> None:
    yarn.then = [application(NEW)]
    trigger = waiting_for(JOB)
    (tmp_path / "job.yaml").unlink()  # the triggerer has no template
    asyncio.run(trigger.on_kill())
    assert yarn.killed == [NEW]
    yarn.then = [application(NEW, "KILLED", "KILLED")]
    assert ended(trigger)["words"] == "KILLED: KILLED: "


def test_a_task_that_is_killed_while_it_submits_ends_what_it_has_submitted(yarn: Yarn) -> None:
    with submitter(JOB.program, {}) as made:

        def answer(asked: Request) -> tuple[int, Any]:
            """YARN has the application, and the task is killed before it has seen that."""
            if yarn.called.exists() and not yarn.killed and asked.method == "GET":
                yarn.platform.answer = yarn.answer
                made.end()
            return yarn.answer(asked)

        yarn.platform.answer = answer
        made.run(JOB, Kept())
    assert yarn.killed == [NEW]


@pytest.mark.parametrize(
    ("extra", "template", "words"),
    [
        ({"yarn_resourcemanager_webapp_address": ""}, {}, "must have yarn_resourcemanager_webapp_address"),
        ({"keytab": "AAAA", "principal": "etl@X"}, {}, "cannot have keytab, principal"),
        ({}, {"spark.yarn.appMasterEnv.AWS_SECRET_ACCESS_KEY": "k"}, "AWS_SECRET_ACCESS_KEY: would be on a command"),
        ({}, {"executor.memory": "1g"}, "executor.memory: is not a setting of Spark"),
        ({}, {"spark.executor": {"memory": "1g"}}, "spark.executor: must be one text or number"),
    ],
)
def test_what_cannot_be_handed_over_is_refused_by_name(
    yarn: Yarn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, extra: Any, template: Any, words: str
) -> None:
    connect(monkeypatch, tmp_path, yarn.platform, **extra)
    if template:
        (tmp_path / "job.yaml").write_text(json.dumps(template))
    with pytest.raises(ConfigError, match=words):
        run(Kept())
    assert not yarn.platform.requests


@pytest.mark.parametrize(("mode", "kind"), [("client", SparkSubmit), ("cluster", YarnApplication)])
def test_the_mode_decides(
    yarn: Yarn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: str, kind: Callable[..., Any]
) -> None:
    connect(monkeypatch, tmp_path, yarn.platform, **{"deploy-mode": mode})
    with submitter(JOB.program, {}) as made:
        assert type(made) is kind
