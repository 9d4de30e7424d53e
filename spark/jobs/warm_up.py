"""Load libraries and kernels in the workers of a Spark Connect server, once after its start.

``python warm_up.py --remote sc://127.0.0.1:15002 --workers 4``
"""

from __future__ import annotations

import sys

from tidemark_spark.cluster.warm_up import main

if __name__ == "__main__":
    sys.exit(main())
