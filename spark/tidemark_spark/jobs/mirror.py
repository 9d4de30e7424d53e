"""The job that lists tables in catalogs."""

from __future__ import annotations

from tidemark.jobs.registry import MirrorOptions
from tidemark_spark.jobs.running import RunningJob, show
from tidemark_spark.mirror.cluster import mirror_cluster


def work(options: MirrorOptions, job: RunningJob) -> int:
    """Bring the catalogs up to date; returns 1 if one of them fails."""
    cluster = job.cluster()
    topics = [topic.topic for topic in job.topics()] if options.topic else []
    status = mirror_cluster(job.deployment, cluster, topics)
    for table in status.tables:
        show(table.model_dump_json())
    return 1 if any(table.failing_since and (not topics or table.topic in topics) for table in status.tables) else 0
