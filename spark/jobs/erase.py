"""Carry out the approved requests for erasure: mask the records that they name, and take them out of the tables.

``spark-submit erase.py --topics FILE [--topic NAME]… [--dry-run] [--json]``

The environment variable ``TIDEMARK_ERASURE_SECRET`` has the secret of the requests. Exit codes: 0 done; 2 a
configuration error; 1 others, or a request was refused, since it finds too much.
"""

from __future__ import annotations

import sys

from tidemark_spark.cli.erase import main

if __name__ == "__main__":
    sys.exit(main())
