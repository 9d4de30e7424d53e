"""Mutants of the jobs, of the evidence that they read, and of Airflow's side, which waits for them."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

JOBS: Final = (
    Mutant(
        "spans of offsets touch a row that ends, or begins, where they do",
        "include/tidemark/table/evidence_index.py",
        "(self._ends[found] >= first)",
        "(self._ends[found] > first)",
        ("tests.tidemark.table.test_evidence_index::test_spans_touch_what_they_would_one_by_one",),
    ),
    Mutant(
        "an audit of a date reads the evidence of other dates at the same offsets",
        "spark/tidemark_spark/audit/date_evidence.py",
        "standing.parts(Choice(days=days), Choice(spans=spans))",
        "standing.parts(Choice(days=days))",
        (
            "tests.spark.audit.test_date_evidence::test_another_date_that_claims_offsets_of_the_date_is_seen_wherever_its_evidence_lies",
        ),
    ),
    Mutant(
        "an audit of a date reads all evidence of a range of bytes that it reads a part of",
        "spark/tidemark_spark/audit/date_evidence.py",
        """            _compute.is_in(rows["segment"], segments),\n""",
        "",
        (
            "tests.spark.audit.test_date_evidence::test_a_range_of_bytes_is_seen_as_a_whole_if_evidence_in_its_middle_is_lost",
        ),
    ),
    Mutant(
        "an audit that differed is repeated",
        "spark/tidemark_spark/audit/run.py",
        "report is not None and report.passed and report.started_at >= since",
        "report is not None and report.started_at >= since",
        ("tests.spark.jobs.test_topics::test_an_audit_that_differed_is_repeated",),
    ),
    Mutant(
        "an audit that passed before the moment that is asked for is repeated",
        "spark/tidemark_spark/audit/run.py",
        "report is not None and report.passed and report.started_at >= since",
        "report is not None and report.passed",
        ("tests.spark.jobs.test_topics::test_an_audit_passes_over_what_has_passed_since",),
    ),
    Mutant(
        "the id of a job that has ended is forgotten, so that the next try submits again",
        "plugins/tidemark_airflow/submitters/base.py",
        "    kept.write(None)\n    if status.state",
        "    if status.state",
        (
            "tests.plugins.submitters.test_waiting::test_a_job_that_did_not_succeed_fails_the_try_and_the_next_submits_again",
        ),
    ),
    Mutant(
        "a job at its limit is cancelled once, and waited for until it is gone",
        "plugins/tidemark_airflow/submitters/waiting.py",
        "if not why and until is not None",
        "if until is not None",
        ("tests.plugins.submitters.test_platforms::test_a_run_that_outlasts_the_task_is_ended_once_and_waited_for",),
    ),
    Mutant(
        "without Spark, no other topic of a job is begun",
        "spark/tidemark_spark/jobs/running.py",
        "            except SparkUnavailable:\n                raise\n",
        "",
        ("tests.spark.jobs.test_topics::test_without_spark_no_other_topic_is_begun",),
    ),
)
