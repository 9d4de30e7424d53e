"""A process that reads a partition to its end: ``python -m tests.tidemark.remote.peak_of URL``.

It prints how many records there were, and the most memory that it took above what its imports take, in bytes.
"""

from __future__ import annotations

import sys

from tests.support.memory import own_peak
from tests.tidemark.remote.reader import TP, Reader, records_of
from tidemark.storage import Storage


def main() -> None:
    """Read as a consumer does that takes 500 records at a time."""
    before = own_peak()
    records = 0
    with Reader(Storage.at(sys.argv[1], "east")) as reader:
        reader.tier.read(TP, 0)
        for block in reader.blocks(max_rows=500):
            records += len(records_of(block))
    sys.stdout.write(f"{records} {own_peak() - before}\n")


if __name__ == "__main__":
    main()
