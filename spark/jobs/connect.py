"""A Spark Connect server for the other jobs, until it is ended.

``spark-submit [--master …] [--conf spark.connect.…=…]… connect.py``

Sessions share the Python workers and their loaded libraries, as nothing is uploaded to a session.
"""

from __future__ import annotations

import sys

from tidemark_spark.cluster.connect_server import main

if __name__ == "__main__":
    sys.exit(main())
