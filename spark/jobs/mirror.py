"""List the tables of a cluster in the catalogs of the topics file: a snapshot for each commit.

``spark-submit mirror.py --topics FILE --cluster NAME [--topic NAME ...]``

Spark is not started. The output is the state of each table in each catalog, as JSON. Exit codes: 0 all are up to date;
2 a configuration error; 1 a catalog did not answer, or refuses, and the others are done.
"""

from __future__ import annotations

import sys

from tidemark_spark.cli.mirror import main

if __name__ == "__main__":
    sys.exit(main())
