"""The demo's command line: ``python -m demo [--keep]`` and ``python -m demo down``."""

from __future__ import annotations

import argparse
import sys
import time

from demo.accounts import Account, Auditor, align, table
from demo.stack import AlreadyRunning, Stack, down
from demo.steps import Steps
from demo.streams import CLICKS, SENSORS, STREAMS, Production
from tidemark.errors import TidemarkError

_PATIENCE = 240.0
"""Seconds without any row landing after which the demo gives up."""

_QUERY = (
    "SELECT dt, count(*) AS clicks, count(DISTINCT kafka_key) AS users, max(kafka_timestamp) AS newest "
    "FROM read_parquet($1, hive_partitioning = true) WHERE dt >= $2::DATE GROUP BY dt ORDER BY dt"
)


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; 0 if every count is as it must be, 1 if one is not or a part failed, 2 for a wrong call."""
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument("command", nargs="?", choices=("run", "down"), default="run")
    parser.add_argument("--keep", action="store_true", help="leave everything running; `make down` stops it")
    parser.add_argument(
        "--seconds", type=float, default=48, help="how long records are produced (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the streams (default: %(default)s)")
    options = parser.parse_args(arguments)
    steps = Steps()
    if options.command == "down":
        down(steps)
        return 0
    try:
        stack = Stack(steps)
    except AlreadyRunning as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return _run(stack, steps, options)


def _run(stack: Stack, steps: Steps, options: argparse.Namespace) -> int:
    kept = False
    try:
        stack.start()
        production = Production(stack.kafka.bootstrap, options.seconds, options.seed)
        production.start()
        steps.say(f"producing {sum(stream.records for stream in STREAMS):,} records to {len(STREAMS)} topics …")
        stack.await_airflow()
        accounts = _follow(stack, steps, production)
        exact = _report(stack, steps, accounts)
        kept = options.keep
    except (TidemarkError, OSError, RuntimeError) as error:
        sys.stderr.write(f"the demo failed: {error}\n{stack.logs()}\n")
        return 1
    else:
        return 0 if exact else 1
    finally:
        if kept:
            _say_how_to_look(stack)
        else:
            stack.stop()


def _follow(stack: Stack, steps: Steps, production: Production) -> list[Account]:
    """Say how it goes, and wait until what is stored has landed."""
    auditor = Auditor(stack.deployment, stack.s3)
    announced, landed_before, last_progress = True, -1, time.monotonic()
    while production.running or not _settled(auditor, production):
        time.sleep(1 if production.running else 0.5)
        landed = sum(auditor.landed_rows(stream) for stream in STREAMS)
        if landed != landed_before:
            sent = sum(production.sent.values())
            steps.say(f"sent {sent:,}, landed {landed:,}")
            landed_before, last_progress = landed, time.monotonic()
        if announced and not production.running:
            production.join()
            steps.say("all sent and acknowledged; waiting for the last segments to land")
            announced = False
        if time.monotonic() - last_progress > _PATIENCE:
            raise TimeoutError(f"no row has landed for {_PATIENCE:.0f} s, and not all that is stored has")
    production.join()
    with steps.step("tables compared with the producers' acknowledgements, offset by offset"):
        return [auditor.account(stream, production.acknowledged[stream.topic]) for stream in STREAMS]


def _settled(auditor: Auditor, production: Production) -> bool:
    """Whether all that is stored has landed, and the quiet topic's tail is stored."""
    tail = {partition: max(found) + 1 for partition, found in production.acknowledged[SENSORS.topic].committed.items()}
    stored = {stream.topic: auditor.stored_up_to(stream) for stream in STREAMS}
    if any(stored[SENSORS.topic].get(partition, 0) < end for partition, end in tail.items()):
        return False
    return all(_behind(auditor.landed_up_to(stream), stored[stream.topic]) == 0 for stream in STREAMS)


def _behind(landed: dict[int, int], stored: dict[int, int]) -> int:
    return sum(end > landed.get(partition, 0) for partition, end in stored.items())


def _report(stack: Stack, steps: Steps, accounts: list[Account]) -> bool:
    auditor = Auditor(stack.deployment, stack.s3)
    write = sys.stdout.write
    write("\n" + table(accounts) + "\n")
    dates = sorted({dt for one in accounts for dt in one.by_date})
    rows = [(one.topic, *(f"{one.by_date.get(dt, 0):,}" for dt in dates)) for one in accounts]
    write(align([("rows by date", *dates), *rows]) + "\n")
    write(f"DuckDB, over what `tidemark files clicks` lists:\n  {_QUERY}\n")
    for row in auditor.duckdb.execute(_QUERY, [auditor.files(CLICKS), dates[0]]).fetchall():
        write("  " + "  ".join(str(value) for value in row) + "\n")
    exact = all(one.exact for one in accounts)
    write(f"\n{'Every count is as it must be.' if exact else 'COUNTS DIFFER.'} {stack.logs()}\n")
    write(f"Airflow's page was at {stack.airflow.url}; `make demo KEEP=1` leaves everything running.\n")
    return exact


def _say_how_to_look(stack: Stack) -> None:
    sys.stdout.write(
        f"\nStill running. Airflow: {stack.airflow.url}  user admin  password {stack.airflow.password}\n"
        f"S3: {stack.s3.endpoint}  Kafka: {stack.kafka.bootstrap}  `make down` stops it all.\n"
    )


if __name__ == "__main__":
    sys.exit(main())
