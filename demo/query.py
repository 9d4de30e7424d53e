"""SQL over a kept demo's tables, with DuckDB: ``python -m demo.query 'SELECT count(*) FROM clicks'``.

Each topic is a view of the files that ``tidemark files`` lists.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from demo.accounts import Auditor, answer
from demo.streams import STREAMS
from tidemark.topics import load_topics


def main() -> int:
    """Run the statement in the only argument."""
    if len(sys.argv) != 2 or "AWS_ENDPOINT_URL" not in os.environ:  # the program and the statement
        sys.stderr.write("usage: . .tidemark/demo/env.sh; python -m demo.query 'SELECT …'\n")
        return 2
    auditor = Auditor(load_topics(Path(os.environ["TIDEMARK_TOPICS"])), os.environ)
    for stream in STREAMS:
        if files := auditor.files(stream):
            auditor.duckdb.read_parquet(files, hive_partitioning=True, union_by_name=True).create_view(stream.topic)
    sys.stdout.write(answer(auditor.duckdb.execute(sys.argv[1])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
