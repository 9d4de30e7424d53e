"""Remove what no reader and no run can need: what dead runs left, what was replaced long enough ago, and old reports.

``spark-submit vacuum.py --topics FILE --topic NAME [--dry-run]``

The last line of output says what was removed, as JSON. Exit codes: 0 done; 2 a configuration error; 1 others.
"""

from __future__ import annotations

import sys

from tidemark_spark.cli.vacuum import main

if __name__ == "__main__":
    sys.exit(main())
