"""Write the raw records of a topic as lines of text or as Hadoop SequenceFiles.

``spark-submit export.py --topics FILE --topic NAME --to URL [--format text|sequence|messagepack]
[--option NAME=VALUE]…``

The last line of output is a summary as JSON, the lines before are the files. Exit codes: 0 done; 2 a configuration
error; 1 others.
"""

from __future__ import annotations

import sys

from tidemark_spark.cli.export import main

if __name__ == "__main__":
    sys.exit(main())
