"""Answers of Spark's readers: ``by_spark.py JOB READER...`` answers the questions of the file JOB beside it."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

from tests.readers.asking import asked


def main(job: str, *readers: str) -> None:
    """Answer as :mod:`tests.readers.asking` does."""
    path = Path(job)
    tables = pickle.loads(path.read_bytes())  # noqa: S301 - the tests' own
    path.with_suffix(".answers").write_bytes(pickle.dumps({one: tuple(asked(one, tables)) for one in readers}))


if __name__ == "__main__":
    main(*sys.argv[1:])
