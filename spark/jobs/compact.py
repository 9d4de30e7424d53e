"""Merge small files of the tables of topics into larger ones; no row changes.

``spark-submit compact.py --topics FILE --topic NAME… [--dt DATE]… [--dry-run] [--json]``

The last line of output of each topic is the result as JSON, or the plan for a dry run; the lines before describe the
merges. A topic that fails does not keep others from their work. Exit codes: 0 landed, stale or empty; 2 a configuration
error; 1 others.
"""

from __future__ import annotations

import sys

from tidemark_spark.cli.compact import main

if __name__ == "__main__":
    sys.exit(main())
