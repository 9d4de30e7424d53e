"""Remove past dates from tables, and raw segments that are past the backfill window, by each topic's policy.

``spark-submit retain.py --topics FILE [--topic NAME]… [--only table|raw] [--dry-run] [--json]``

Only topics with ``retention.apply: true`` lose data, and only data that a report named a day before. The reports
are printed and written below the topic's ledger. Exit codes: 0 done; 2 a configuration error; 1 others.
"""

from __future__ import annotations

import sys

from tidemark_spark.cli.retain import main

if __name__ == "__main__":
    sys.exit(main())
