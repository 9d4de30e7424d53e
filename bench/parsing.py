"""What it takes Airflow to read the DAGs of 1,000 topics."""

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
began = time.perf_counter()
bag = DagBag(sys.argv[1])
bagged = time.perf_counter()
sizes = [len(json.dumps(DagSerialization.serialize_dag(dag))) for dag in bag.dags.values()]
done = time.perf_counter()
assert not bag.import_errors, bag.import_errors
print(json.dumps({"dags": len(bag.dags), "bag": bagged - began, "serial": done - bagged, "bytes": sum(sizes)}))
"""


def measure() -> list[Row]:
    """The ingest DAGs as a bag, and a pass of the dag-processor over all of Tidemark's DAG files."""
    folder = HOME / "parsing"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    topics = folder / "topics.yaml"
    content = {
        "cluster": "kafka-1",
        "raw": {"url": f"file://{folder}/raw"},
        "lake": f"file://{folder}/lake",
        "topics": [{"topic": f"topic-{number}"} for number in range(TOPICS)],
    }
    topics.write_text(yaml.safe_dump(content))
    env = _environment(folder, topics)
    subprocess.run([env_bin("airflow", "airflow"), "db", "migrate"], env=env, check=True, stdout=subprocess.DEVNULL)
    found = []
    for _ in range(ROUNDS):
        command = [str(env_python("airflow")), "-W", "ignore", "-c", _BAG, str(ROOT / "dags" / "ingest.py")]
        done = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
    command = [str(env_bin("airflow", "airflow")), "dag-processor", "--num-runs", "1"]
    passes = [run(command, env=env, log=HOME / "dag-processor.log") for _ in range(ROUNDS)]
    note = f"{TOPICS} topics"
    return [
        Row("orchestration", "parse: DagBag of ingest.py", "s", tuple(one["bag"] for one in found), note),
        Row("orchestration", "parse: serialize its DAGs", "s", tuple(one["serial"] for one in found), note),
        Row("orchestration", "parse: a serialized DAG", "KB", (found[0]["bytes"] / found[0]["dags"] / 1e3,), note),
        Row(
            "orchestration",
            "parse: dag-processor, one pass of all files, with its start",
            "s",
            tuple(one.wall for one in passes),
            f"{note}; the first pass writes all DAGs",
        ),
    ]


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
        "TIDEMARK_TOPICS": str(topics),
    }
