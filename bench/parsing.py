"""Time and size of Airflow's DAGs of 1,000 topics, and of the DAG of 1,000 live topics of one cluster."""

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


def _write(path: Path, settings: dict[str, str]) -> None:
    """Write the topics file; each of its topics has ``settings``."""
    content = {
        "cluster": "kafka-1",
        "raw": {"url": f"file://{path.parent}/raw"},
        "lake": f"file://{path.parent}/lake",
        "topics": [{"topic": f"topic-{number}", **settings} for number in range(TOPICS)],
    }
    path.write_text(yaml.safe_dump(content))


def _bags(file: str, env: dict[str, str]) -> list[dict[str, float]]:
    """CPU seconds to read a DAG file and to serialize its DAGs, and their size in bytes, for each round."""
    command = [str(env_python("airflow")), "-W", "ignore", "-c", _BAG, str(ROOT / "dags" / file)]
    done = [subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True) for _ in range(ROUNDS)]
    return [json.loads(process.stdout.splitlines()[-1]) for process in done]


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
