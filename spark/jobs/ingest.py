"""Land a topic's new records in its table, and close the complete dates.

``spark-submit ingest.py --topics FILE --topic NAME [--attempt N] [--dry-run]``

The last line of output is the result as JSON, or the plan for a dry run. Exit codes: 0 landed, stale or empty; 2 a
configuration error; 1 others.
"""

from __future__ import annotations

import sys

from tidemark_spark.cli.ingest import main

if __name__ == "__main__":
    sys.exit(main())
