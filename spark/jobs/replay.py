"""Parse quarantined records of a topic again.

``spark-submit replay.py --topics FILE --topic NAME [--dt DATE]… [--report NAME] [--dry-run]``

The last line of output is the result or the preview as JSON. Exit codes: 0 landed, stale or empty; 2 a configuration
error; 1 others.
"""

from __future__ import annotations

import sys

from tidemark_spark.cli.replay import main

if __name__ == "__main__":
    sys.exit(main())
