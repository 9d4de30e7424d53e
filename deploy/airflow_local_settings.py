"""Airflow's local settings for Tidemark: put this file, or its two lines, into a folder of Airflow's PYTHONPATH."""

from tidemark_airflow.early import import_early

import_early()
