"""Merge small files of a cluster's tables whose topics have a freshness; no row changes.

``spark-submit compact_live.py --topics FILE --cluster NAME``

The output has a line of JSON for each table with a merge: its result. Exit codes: 0 each table landed, was
stale or had nothing to merge; 2 a configuration error; 1 a table failed, and the others are done.
"""

from __future__ import annotations

import sys

from tidemark_spark.cli.compact_live import main

if __name__ == "__main__":
    sys.exit(main())
