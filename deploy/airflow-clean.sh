#!/bin/sh
# Remove from Airflow's metadata what is older than a time, by default 30 days: once a day is enough.
#
#   airflow-clean.sh [TIME]                  TIME such as 2026-11-20T00:00:00+00:00
#
# Only these tables. A run takes its task instances, XComs and their histories with it, and the newest run of a DAG
# stays. task_instance by itself must not be cleaned, since a quiet topic's task has waited since its run began, be that
# months ago, and would be lost; job has few rows, and among them those of the components that run. What was published
# is known by the outbox pointer of each table, which has moved on long before its events are removed.
set -eu
before=${1:-$(date --utc --date '30 days ago' +%Y-%m-%dT%H:%M:%S+00:00)}
exec airflow db clean --clean-before-timestamp "$before" --tables asset_event,dag_run,import_error,log \
  --skip-archive --yes
