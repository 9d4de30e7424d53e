"""Remove objects that no reader and no run can need: leftovers of dead runs, replaced objects, and old reports.

``spark-submit vacuum.py --topics FILE --topic NAME… [--dry-run]``

A line of output for each topic lists the removed objects, as JSON. A topic that fails does not keep others from their
work. Exit codes: 0 done; 2 a configuration error; 1 others.
"""

from __future__ import annotations

import sys

from tidemark_spark.cli.vacuum import main

if __name__ == "__main__":
    sys.exit(main())
