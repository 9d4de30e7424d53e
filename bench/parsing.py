"""Time and size of Airflow's DAGs of 1,000 topics, and of the DAG of 1,000 live topics of one cluster.

:func:`of_the_file` compares what the topics file takes in the processes of a landing, with 3 topics and with 3,000.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
from pathlib import Path
from typing import Final

import yaml

from bench.data import HOME
from bench.measure import Row, run
from tests.support.paths import ROOT, env_bin, env_python

TOPICS: Final = 1000
FEW_AND_MANY: Final = (3, 3000)
ROUNDS: Final = 3

_BAG: Final = """
import json, sys, time
from airflow.dag_processing.dagbag import DagBag
from airflow.serialization.serialized_objects import DagSerialization
began = time.process_time()
bag = DagBag(sys.argv[1])
bagged = time.process_time()
sizes = [len(json.dumps(DagSerialization.serialize_dag(dag))) for dag in bag.dags.values()]
done = time.process_time()
assert not bag.import_errors, bag.import_errors
print(json.dumps({"dags": len(bag.dags), "bag": bagged - began, "serial": done - bagged, "bytes": sum(sizes)}))
"""

_JOB: Final = """
import json, sys, time
from pathlib import Path
from tidemark.topics import load_topics
began = time.process_time()
load_topics(Path(sys.argv[1])).topic("topic-1")
print(json.dumps({"cpu": time.process_time() - began}))
"""
"""What a job's process does with the topics file; a task's is the same, after its DAG file is read."""

_TASK_OF: Final = "_AIRFLOW_PARSING_CONTEXT_DAG_ID"
_TASKS: Final = 3
"""The processes of Airflow's tasks in a landing: one waits, one plans, one starts the job; each reads the DAG file."""


def measure() -> list[Row]:
    """Figures of a DagBag of the ingest DAGs and of the live DAG, and of a dag-processor's pass over all DAG files."""
    folder = HOME / "parsing"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    topics = folder / "topics.yaml"
    _write(topics, {})
    env = _environment(folder, topics)
    subprocess.run([env_bin("airflow", "airflow"), "db", "migrate"], env=env, check=True, stdout=subprocess.DEVNULL)
    ingest = _bags("ingest.py", env)
    command = [str(env_bin("airflow", "airflow")), "dag-processor", "--num-runs", "1"]
    passes = [run(command, env=env, log=HOME / "dag-processor.log") for _ in range(ROUNDS)]
    note = f"{TOPICS} topics"
    _write(topics, {"freshness": "60s"})
    live = _bags("live.py", env)
    return [
        Row(
            "orchestration",
            "parse: DagBag of live.py",
            "CPU-s",
            tuple(bag["bag"] for bag in live),
            f"{note}, one cluster",
        ),
        Row(
            "orchestration",
            "parse: serialize its DAG",
            "CPU-s",
            tuple(bag["serial"] for bag in live),
            f"{note}, one cluster",
        ),
        Row("orchestration", "parse: the serialized live DAG", "KB", (live[0]["bytes"] / 1e3,), f"{note}, one cluster"),
        Row("orchestration", "parse: DagBag of ingest.py", "CPU-s", tuple(bag["bag"] for bag in ingest), note),
        Row("orchestration", "parse: serialize its DAGs", "CPU-s", tuple(bag["serial"] for bag in ingest), note),
        Row("orchestration", "parse: a serialized DAG", "KB", (ingest[0]["bytes"] / ingest[0]["dags"] / 1e3,), note),
        Row(
            "orchestration",
            "parse: dag-processor, one pass of all files, with its start",
            "s",
            tuple(usage.wall for usage in passes),
            f"{note}; the first pass writes all DAGs",
        ),
    ]


def of_the_file() -> list[Row]:
    """CPU seconds that the topics file takes in a landing's processes, and the DAGs of a whole folder."""
    rows = []
    for count in FEW_AND_MANY:
        folder = HOME / f"topics-{count}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        topics, note = folder / "topics.yaml", f"{count:,} topics"
        _write(topics, {}, count, columns=3)
        env = {**_environment(folder, topics), "XDG_CACHE_HOME": str(folder / "cache")}
        first, *jobs = [_measured(_JOB, [str(topics)], env)["cpu"] for _ in range(1 + ROUNDS)]
        whole = [bag["bag"] for bag in _bags("", env)]
        tasks = [bag["bag"] for bag in _bags("ingest.py", {**env, _TASK_OF: "tidemark_ingest__kafka-1__topic-1"})]
        landings = tuple(_TASKS * task + job for task, job in zip(tasks, jobs, strict=True))
        rows += [
            Row("topics", "the first process after a change", "CPU-s", (first,), note),
            Row("topics", "a later process, for its topic", "CPU-s", tuple(jobs), note),
            Row("topics", "a task's DAG file", "CPU-s", tuple(tasks), note),
            Row("topics", f"a landing: {_TASKS} tasks and a job", "CPU-s", landings, note),
            Row("topics", "a DagBag of all DAG files", "CPU-s", tuple(whole), note),
        ]
    return rows


def _write(path: Path, settings: dict[str, str], count: int = TOPICS, *, columns: int = 0) -> None:
    """Write the topics file; each of its topics has ``settings``, and a parser of JSON for a number of ``columns``."""
    fields = [{"name": f"column_{number}", "type": "string"} for number in range(columns)]
    parser = {"parser": {"kind": "json", "columns": fields}} if columns else {}
    content = {
        "cluster": "kafka-1",
        "raw": {"url": f"file://{path.parent}/raw"},
        "lake": f"file://{path.parent}/lake",
        "topics": [{"topic": f"topic-{number}", **settings, **parser} for number in range(count)],
    }
    path.write_text(yaml.safe_dump(json.loads(json.dumps(content))))  # without anchors for what topics share


def _bags(file: str, env: dict[str, str]) -> list[dict[str, float]]:
    """CPU seconds to read a DAG file and to serialize its DAGs, and their size in bytes, for each round."""
    return [_measured(_BAG, [str(ROOT / "dags" / file)], env) for _ in range(ROUNDS)]


def _measured(program: str, arguments: list[str], env: dict[str, str]) -> dict[str, float]:
    """What a Python program prints last, in a process of Airflow's environment."""
    command = [str(env_python("airflow")), "-W", "ignore", "-c", program, *arguments]
    done = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _environment(folder: Path, topics: Path) -> dict[str, str]:
    home = folder / "airflow"
    home.mkdir()
    return {
        **os.environ,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_urlsafe(64),
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "AIRFLOW__TIDEMARK__TOPICS": str(topics),
    }
