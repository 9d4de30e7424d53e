"""A consumer as a process of its own, to be killed: writes a line for each record once it has processed it.

python -m tests.consumer.member BOOTSTRAP STORE_URL CLUSTER TOPIC GROUP MODE OUT
"""

from __future__ import annotations

import sys
from pathlib import Path

from tidemark import TieredConsumer
from tidemark.storage import Storage


def main(bootstrap: str, url: str, cluster: str, topic: str, group: str, mode: str, out: str) -> None:
    """Read for ever; commits are automatic and frequent."""
    with (
        Path(out).open("a", encoding="utf-8") as lines,
        TieredConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            mode=mode,
            storage=Storage.at(url, cluster),
            auto_offset_reset="earliest",
            auto_commit_interval_ms=20,
            max_poll_records=25,
            session_timeout_ms=2000,
            heartbeat_interval_ms=200,
        ) as consumer,
    ):
        for record in consumer:
            lines.write(f"{record.partition} {record.offset} {int(record.value.rstrip(bytes(1)))}\n")
            lines.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
