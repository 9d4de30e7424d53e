"""Land the new records of a cluster's due topics, which the cluster's landing in the lake lists.

``spark-submit land_live.py --topics FILE --cluster NAME``

The output has a line of JSON for each topic. Exit codes: 0 for any outcome of the topics; 2 a configuration error; 1 if
Spark or the lake did not answer, and then the landing may be carried out again.
"""

from __future__ import annotations

import sys

from tidemark_spark.cli.land_live import main

if __name__ == "__main__":
    sys.exit(main())
