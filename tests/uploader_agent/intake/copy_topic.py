"""A program that copies a topic into a spool: ``python -m tests.uploader_agent.intake.copy_topic --topic orders ...``.

It prints a JSON line for each partition, and fails with 1 if one was not copied, as the agent's commands do.
"""

from __future__ import annotations

import argparse
import json
import logging
import signal
import sys
from contextlib import ExitStack, closing
from pathlib import Path
from threading import Event

from tests.uploader_agent.intake.topic_copy import TopicCopy
from tidemark.errors import ConfigError, TidemarkError
from tidemark.kafka_admin import client_settings
from uploader_agent.disk.locks import lock_directories
from uploader_agent.intake.brokers import BrokerConnections
from uploader_agent.intake.fetching import FetchLimits


def main() -> None:
    """Carry out the command line. An expected error becomes a message and an exit code."""
    try:
        sys.exit(_copy(_parsed()))
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
    except (TidemarkError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(1)


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--bootstrap", "--topic"):
        parser.add_argument(name, required=True)
    parser.add_argument("--to", required=True, type=Path, help="the spool, which is made or continued")
    parser.add_argument("--config", type=Path, help="YAML with kafka-python's settings")
    parser.add_argument("--rack", default="")
    parser.add_argument("--follow", action="store_true", help="go on until SIGTERM")
    return parser.parse_args()


def _copy(options: argparse.Namespace) -> int:
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    settings, stopping = client_settings(options.bootstrap, options.config, "--config"), Event()
    options.to.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        stack.enter_context(lock_directories([options.to]))
        brokers = stack.enter_context(closing(BrokerConnections(settings, FetchLimits(), options.rack)))
        copy = stack.enter_context(closing(TopicCopy(brokers, options.topic, options.to, follow=options.follow)))
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stopping.set())
        copy.run(stopping.is_set)
        rows = copy.rows()
    for row in rows:
        sys.stdout.write(json.dumps(row._asdict()) + "\n")
    return 0 if all(row.state == ("following" if options.follow else "copied") for row in rows) else 1


if __name__ == "__main__":
    main()
