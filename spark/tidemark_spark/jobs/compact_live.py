"""The job that merges small files of topics that land every minute."""

from __future__ import annotations

import sys
from typing import Final

from tidemark.errors import SparkUnavailable, TidemarkError
from tidemark.jobs.registry import CompactLiveOptions
from tidemark.openlineage.runs import of_run
from tidemark.planning import plan_compaction, write_plan
from tidemark.planning.maintenance.fold import plan_fold
from tidemark.table.delta_table import TopicTable, committed_ledger, open_topic_table
from tidemark_spark.jobs.running import RunningJob, show
from tidemark_spark.run.driver import fold, run

FILES: Final = 2
"""Least number of small files of a partition to merge: two, so that no mergeable pair of an hour's landings stays."""


def work(_options: CompactLiveOptions, job: RunningJob) -> int:
    """Merge the files of each topic of the cluster that has a freshness; returns 1 if one failed."""
    failed = False
    for topic in job.deployment.live_topics(job.cluster()):
        try:
            table = open_topic_table(job.deployment, topic)
            while _merged(table, job):
                pass
            fold(table, plan_fold(table, committed_ledger(table)))
        except SparkUnavailable:
            raise
        except TidemarkError as error:  # of this table only: continue with the others
            sys.stderr.write(f"{topic.topic}: {type(error).__name__}: {error}\n")
            failed = True
    return 1 if failed else 0


def _merged(table: TopicTable, job: RunningJob) -> bool:
    """Merge the files of one run; True if there may be more."""
    plan = plan_compaction(table, files=FILES)
    if plan.empty:
        return False
    write_plan(table, plan)
    result = run(table, plan, job.executor)
    job.lineage.note(lambda: of_run(table, plan, result))
    show(result.to_bytes().decode())
    return result.status == "landed"
