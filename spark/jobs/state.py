"""Bring the state tables of topics, one row for each key, to the newest commits of their tables.

``spark-submit state.py --topics FILE [--topic NAME]… [--rebuild]``

Exit codes: 0 done, also if nothing had changed or another run was first; 2 a configuration error; 1 others.
"""

from __future__ import annotations

import sys

from tidemark_spark.cli.state import main

if __name__ == "__main__":
    sys.exit(main())
