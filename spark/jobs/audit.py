"""Prove tables equal to the raw segments that they were made of, and to their evidence; name every difference.

``spark-submit audit.py --topics FILE [--topic NAME]… [--dt DATE]… [--from DATE --to DATE] [--json]``

The report is written below the topic's ledger, and printed. Exit codes: 0 nothing differs; 1 something does, or the
audit failed; 2 a configuration error.
"""

from __future__ import annotations

import sys

from tidemark_spark.cli.audit import main

if __name__ == "__main__":
    sys.exit(main())
