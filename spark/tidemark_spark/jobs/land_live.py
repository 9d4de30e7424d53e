"""The job that lands many topics together."""

from __future__ import annotations

import sys

from tidemark.errors import PreconditionFailed
from tidemark.formats.table.live_landing import read_landing, write_landing
from tidemark.jobs.registry import LandLiveOptions
from tidemark.openlineage.runs import of_run
from tidemark.store import open_store
from tidemark_spark.jobs.running import RunningJob, show
from tidemark_spark.live.landing import land


def work(_options: LandLiveOptions, job: RunningJob) -> int:
    """Carry out the cluster's landing, and store what became of each topic; returns 0."""
    deployment = job.deployment
    store = open_store(deployment.lake_store, deployment.store)
    key = deployment.deployment_keys(job.cluster()).landing
    landing, etag = read_landing(store, key)
    if landing is None or landing.ended_at is not None:
        show("there is no landing that has not ended")
        return 0
    done = land(deployment, landing, job.executor, lambda *ran: job.lineage.note(lambda: of_run(*ran)))
    for topic in done.topics:
        show(topic.model_copy(update={"partitions": ()}).model_dump_json(exclude_defaults=True))
    try:
        write_landing(store, key, done, etag)
    except PreconditionFailed:
        sys.stderr.write(f"{key}: another process carries out this landing or a later one, and reports it\n")
    return 0
