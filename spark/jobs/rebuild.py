"""A job: ``rebuild.py --help`` says what it does, and docs/jobs.md."""

from tidemark_spark.jobs.running import run_job

if __name__ == "__main__":
    raise SystemExit(run_job("rebuild"))
