"""``python -m bench [PART...]``: measure, print a table for each part, write it to ``.tidemark/bench/<part>.md``.

Topics are produced once through a real broker and kept in the user's cache; ``python -m bench data`` only does that.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from functools import partial

from bench import (
    adopt,
    agent,
    commits,
    convert,
    erasure,
    evidence,
    fetch_peer,
    idle,
    live_many,
    lost_lake,
    parsing,
    rebuild,
    remote_reader,
    shares,
    stack,
    state,
)
from bench.data import HOME, Data, Topic, data
from bench.measure import Row, table
from demo.steps import Steps
from tests.support.s3 import S3Server

PARTS = ("data", "agent", "idle", "fetch", "fetch-idle", "orchestration", "consumer", "convert", "erasure")
LONG = (
    *("adopt", "airflow-idle", "commits", "evidence", "fetch-peer", "live-many", "lost-lake", "rebuild", "shares"),
    *("state", "topics"),
)
"""Parts that run only when they are named."""


def main() -> int:
    """Run the named parts, or :data:`PARTS` without names."""
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, epilog="example: python -m bench convert --only zstd-1000,lz4-250"
    )
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (default: all), {', '.join(LONG)}"
    )
    parser.add_argument("--gib", type=float, default=1.1, help="GiB of record values of a topic (default: %(default)s)")
    parser.add_argument("--only", type=lambda text: text.split(","), help="topics of convert, by codec and size")
    parser.add_argument("--rounds", type=int, default=3, help="convert: rounds after the first (default: %(default)s)")
    parser.add_argument("--keys", type=int, default=10_000_000, help="state: keys of a topic (default: %(default)s)")
    options = parser.parse_args()
    unknown = [part for part in options.parts if part not in (*PARTS, *LONG)]
    topics = [
        topic for topic in convert.TOPICS if options.only is None or f"{topic.codec}-{topic.size}" in options.only
    ]
    if unknown or not topics:
        parser.error(f"no such part or topic: {', '.join(unknown or options.only)}")
    parts = [part for part in (*PARTS, *LONG) if part in (options.parts or PARTS)]
    for folder in HOME.glob("*/"):
        shutil.rmtree(folder)
    HOME.mkdir(parents=True, exist_ok=True)
    _run(parts, topics, options)
    return 0


def _run(parts: list[str], topics: list[Topic], options: argparse.Namespace) -> None:
    steps = Steps()

    def run_part(name: str, measure: Callable[[], list[Row]]) -> None:
        """Measure one part and print its table at once, because a later part may fail."""
        with steps.step(f"{name} measured"):
            text = table(measure())
        (HOME / f"{name}.md").write_text(text)
        sys.stdout.write(f"\n{text}\n")
        sys.stdout.flush()

    with S3Server(HOME / "s3") as s3:
        os.environ.update(s3.env())
        without_data: dict[str, Callable[[], list[Row]]] = {
            "idle": lambda: idle.measure(s3),
            "fetch-idle": lambda: idle.fetching(s3),
            "orchestration": lambda: parsing.measure() + stack.measure(),
            "consumer": lambda: remote_reader.measure(s3),
            "fetch-peer": lambda: fetch_peer.measure(s3),
            "adopt": adopt.measure,
            "airflow-idle": shares.idle,
            "live-many": live_many.measure,
            "commits": commits.measure,
            "evidence": evidence.measure,
            "shares": shares.measure,
            "rebuild": rebuild.measure,
            "state": lambda: state.measure(options.keys),
            "topics": parsing.of_the_file,
        }
        with_data: dict[str, tuple[Sequence[Topic], Callable[[Data], list[Row]]]] = {
            "agent": (agent.TOPICS, lambda made: agent.backlog(made, s3) + agent.latency(made.cluster, s3)),
            "fetch": (agent.TOPICS, lambda made: agent.fetching(made, s3) + agent.append_to_stored(made.cluster, s3)),
            "erasure": ((erasure.TOPIC,), erasure.measure),
            "lost-lake": ((lost_lake.TOPIC,), lambda made: lost_lake.measure(made, s3)),
            "convert": (topics, lambda made: convert.measure(made, s3, topics, options.rounds)),
        }
        for name in (part for part in parts if part in without_data):
            run_part(name, without_data[name])
        needed = [
            topic
            for name, (part_topics, _) in with_data.items()
            if name in parts or "data" in parts
            for topic in part_topics
        ]
        if needed:
            with data(options.gib, list(dict.fromkeys(needed)), steps) as made:
                for name in (part for part in parts if part in with_data):
                    run_part(name, partial(with_data[name][1], made))


if __name__ == "__main__":
    sys.exit(main())
