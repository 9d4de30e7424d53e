"""Prove tables equal to their raw segments and to their evidence, and report every difference.

``spark-submit audit.py --topics FILE [--topic NAME]… [--dt DATE]… [--from DATE --to DATE] [--since TIME]
[--json]``

The report is written below the topic's ledger, and printed. Exit codes: 0 no difference; 1 a difference, or the
audit failed; 2 a configuration error.
"""

from __future__ import annotations

import sys

from tidemark_spark.cli.audit import main

if __name__ == "__main__":
    sys.exit(main())
