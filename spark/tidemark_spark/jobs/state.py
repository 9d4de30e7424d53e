"""The job of state tables."""

from __future__ import annotations

from datetime import datetime

from tidemark.errors import ConfigError
from tidemark.formats.table.statuses import AUDIT_PARTS
from tidemark.jobs.registry import StateOptions
from tidemark.planning.state import is_due
from tidemark.table.delta_table import TopicTable
from tidemark.table.state_table import StateTable, state_status
from tidemark_spark.jobs.running import RunningJob, show
from tidemark_spark.state.audit import audit_state
from tidemark_spark.state.run import run_state


def work(options: StateOptions, job: RunningJob) -> int:
    """Bring the state tables up to date, or audit them; returns 1 if an audit finds a difference."""

    def brought(of: TopicTable) -> int:
        if options.due and not is_due(of, of.store.now()):
            return 0
        show(run_state(StateTable.open(of), job.executor, rebuild=options.rebuild).to_bytes().decode())
        return 0

    def audited(of: TopicTable) -> int:
        part = of.store.now().toordinal() % AUDIT_PARTS if options.part is None else options.part
        if options.since is not None and _passed_since(of, part, options.since):
            return 0
        audit = audit_state(StateTable.open(of), part, job.executor)
        show(audit.to_bytes().decode())
        return int(audit.different > 0)

    if not options.topic and not any(topic.state for topic in job.deployment.topics):
        raise ConfigError(options.program(), [("--topics", "no topic of the file has `state:`")])
    do = audited if options.audit else brought
    return job.on_each_table(do, lambda topic: bool(options.topic) or topic.state is not None)


def _passed_since(table: TopicTable, part: int, since: datetime) -> bool:
    status = state_status(table)
    last = status.audits.get(part) if status is not None else None
    return last is not None and last.at >= since and not last.different
