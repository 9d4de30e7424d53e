"""Repair a table from raw after another program changed it.

``spark-submit repair.py --topics FILE --topic NAME [--report NAME] [--dry-run]``

The last line of output is the result or the preview as JSON. Exit codes: 0 landed, stale or empty; 2 a configuration
error; 1 others.
"""

from __future__ import annotations

import sys

from tidemark_spark.cli.repair import main

if __name__ == "__main__":
    sys.exit(main())
