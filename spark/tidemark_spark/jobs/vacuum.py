"""The job that removes objects that no reader and no run can need."""

from __future__ import annotations

from tidemark.jobs.registry import VacuumOptions
from tidemark.openlineage.runs import of_vacuum
from tidemark.table.delta_table import TopicTable
from tidemark_spark.jobs.running import RunningJob, begun, show
from tidemark_spark.run.vacuum import vacuum


def work(options: VacuumOptions, job: RunningJob) -> int:
    """Vacuum each topic, and show what was removed; returns the exit code."""

    def vacuumed(table: TopicTable) -> int:
        report = vacuum(begun(table), dry_run=options.dry_run)
        removed = (0, 0) if options.dry_run else (len(report.removed), report.bytes)
        job.lineage.note(lambda: of_vacuum(table, report.ledger_n, *removed))
        show(report.to_bytes().decode())
        return 0

    return job.on_each_table(vacuumed)
