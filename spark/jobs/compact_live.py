"""Merge small files of all tables of a cluster whose topics have a freshness; no row changes.

``spark-submit compact_live.py --topics FILE --cluster NAME``

A line of output for each table in which something was merged: the result as JSON. Exit codes: 0 each table landed, was
stale or had nothing to merge; 2 a configuration error; 1 a table failed, and the others are done.
"""

from __future__ import annotations

import sys

from tidemark_spark.cli.compact_live import main

if __name__ == "__main__":
    sys.exit(main())
