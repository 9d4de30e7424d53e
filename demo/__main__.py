"""The demo's command line: ``python -m demo [--fetch] [--keep]`` and ``python -m demo down``."""

from __future__ import annotations

import argparse
import subprocess
import sys

from demo import trying
from demo.accounts import Auditor, align, answer, table
from demo.following import Follower
from demo.processes import HOME, StillRunning, down
from demo.stack import Stack
from demo.steps import Steps
from demo.streams import ORDERS, STREAMS, Production
from tidemark.errors import TidemarkError

_QUERY = (
    "SELECT dt, count(*) AS orders, count(DISTINCT customer) AS customers, sum(amount) AS revenue "
    "FROM read_parquet($1, hive_partitioning = true) WHERE dt >= $2::DATE GROUP BY dt ORDER BY dt"
)


_ROWS = (
    "SELECT kafka_partition, kafka_offset, kafka_timestamp::VARCHAR AS at, order_id, customer, amount, items "
    "FROM read_parquet($1, hive_partitioning = true) ORDER BY kafka_timestamp DESC, kafka_offset LIMIT 3"
)


def main(arguments: list[str] | None = None) -> int:
    """Run the demo: 0 if every count is right.

    1 if a count is wrong, or a part failed; 2 for a wrong call, or if a process runs in the folder; 130 after Ctrl-C.
    """
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument("command", nargs="?", choices=("run", "down"), default="run")
    parser.add_argument("--keep", action="store_true", help="leave everything running; `make down` stops it")
    parser.add_argument("--fetch", action="store_true", help="the agents fetch, and read no broker's disk")
    parser.add_argument("--seconds", type=float, default=20, help="duration of the production (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the streams (default: %(default)s)")
    options = parser.parse_args(arguments)
    steps = Steps()
    try:
        if options.command == "down":
            down(steps)
            return 0
        stack = Stack(steps, fetch=options.fetch)
    except StillRunning as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return _run(stack, steps, options)


def _run(stack: Stack, steps: Steps, options: argparse.Namespace) -> int:
    kept = False
    try:
        stack.start()
        production = Production(stack.kafka.bootstrap, options.seconds, options.seed, HOME / "producers.log")
        production.start()
        steps.say(f"producing {sum(stream.records for stream in STREAMS):,} records to {len(STREAMS)} topics …")
        auditor = Auditor(stack.deployment, stack.s3.env())
        Follower(stack, steps, production, auditor).follow()
        exact = _report(stack, steps, auditor, production, keep=options.keep)
        if options.keep:
            for dag in ("tidemark_watch", "tidemark_backfill"):
                stack.airflow.client.wait_for_dag(dag)
                stack.airflow.client.unpause(dag)
            kept = True
    except (TidemarkError, OSError, RuntimeError, subprocess.SubprocessError) as error:
        sys.stderr.write(f"the demo failed: {error}\n{stack.logs()}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    else:
        return 0 if exact else 1
    finally:
        if kept:
            _print_instructions(stack)
        else:
            stack.stop()


def _report(stack: Stack, steps: Steps, auditor: Auditor, production: Production, *, keep: bool) -> bool:
    with steps.step("tables compared with the producers' acknowledgements, offset by offset"):
        accounts = [auditor.account(stream, production.acknowledged[stream.topic]) for stream in STREAMS]
    write = sys.stdout.write
    write("\n" + table(accounts) + "\n")
    dates = sorted({dt for account in accounts for dt in account.by_date})
    rows = [(account.topic, *(f"{account.by_date.get(dt, 0):,}" for dt in dates)) for account in accounts]
    write(align([("rows by date", *dates), *rows]) + "\n")
    write(
        f"{ORDERS.topic} has typed columns: its topic has a parser for JSON. Some rows, and an answer, from DuckDB:\n\n"
    )
    files = auditor.files(ORDERS)
    write(answer(auditor.duckdb.execute(_ROWS, [files])) + "\n")
    write(f"{_QUERY}\n\n" + answer(auditor.duckdb.execute(_QUERY, [files, dates[0]])))
    exact = all(account.exact for account in accounts)
    write(f"\n{'Every count is as it must be.' if exact else 'COUNTS DIFFER.'} {stack.logs()}\n")
    if not keep:
        write(f"Airflow's page was at {stack.airflow.url}; `make demo KEEP=1` leaves everything running.\n")
    return exact


def _print_instructions(stack: Stack) -> None:
    env_file, approver_file = HOME / "env.sh", HOME / "env-approver.sh"
    variables = stack.variables()
    trying.write_env_file(env_file, variables)
    trying.write_approver_file(approver_file, env_file, stack.approver())
    sys.stdout.write(
        f"\nStill running; `make down` stops it all. Airflow: {stack.airflow.url}  user admin  "
        f"password {stack.airflow.password}\nTo try the rest, in this shell:\n"
        + "".join(f"  {line}\n" for line in trying.lines(env_file))
        + f"The topics file is yours to change: {variables['TIDEMARK_TOPICS']}\n"
        + "To erase the orders of one customer, which a second person approves:\n"
        + "".join(f"  {line}\n" for line in trying.erasing(env_file, approver_file))
    )


if __name__ == "__main__":
    sys.exit(main())
