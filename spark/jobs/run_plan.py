"""Carry out a stored plan, or print the rows that it would change.

``spark-submit run_plan.py --topics FILE --topic NAME --plan KEY [--compare [--report NAME]]``

The last line of output is the result or the comparison as JSON. Exit codes: 0 landed, stale or empty; 2 a configuration
error; 1 others. With ``--compare``: 0 no row would change, 1 some would, 2 trouble.
"""

from __future__ import annotations

import sys

from tidemark_spark.cli.run_plan import main

if __name__ == "__main__":
    sys.exit(main())
