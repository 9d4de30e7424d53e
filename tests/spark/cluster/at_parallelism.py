"""Carry out the plans of several deployments in one session of Spark: MASTER, then the topics files."""

from __future__ import annotations

import sys
from pathlib import Path

from tidemark.planning import read_plan
from tidemark.table.delta_table import open_topic_table
from tidemark.topics import load_topics
from tidemark_spark.cluster.session import Classic
from tidemark_spark.run.driver import run


def main(master: str, *files: str) -> None:
    """Run them; a deployment has one topic and one plan. A session that this process has is used."""
    spark = Classic("tests", master)
    for file in files:
        deployment = load_topics(Path(file))
        table = open_topic_table(deployment, deployment.topics[0])
        [plan] = [read_plan(table, one.key) for one in table.store.list(table.keys.attempts)]
        result = run(table, plan, spark)
        sys.stdout.write(f"{result.status} {len(plan.tasks)} tasks {result.files} files\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
