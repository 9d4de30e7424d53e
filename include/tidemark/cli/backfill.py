"""``tidemark backfill``: the backfill DAG from the command line, by Airflow's REST API, with its form and reports."""

from __future__ import annotations

import json
import time
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from tidemark.backfill.report import BackfillReport
from tidemark.backfill.report_tables import sections, text
from tidemark.backfill.request import DEFAULTS, Mode, check_form, report_name
from tidemark.cli.airflow_client import TOKEN, Airflow, read_token
from tidemark.cli.options import As, writes
from tidemark.jobs.options import Exchange
from tidemark.timestamps import utc_now

DAG: Final = "tidemark_backfill"


@writes
def backfill(
    topics: Annotated[list[str], typer.Argument(metavar="CLUSTER/TOPIC...", help="The topics.")],
    first: Annotated[datetime, typer.Option("--from", formats=["%Y-%m-%d"], help="The first date, inclusive.")],
    last: Annotated[datetime, typer.Option("--to", formats=["%Y-%m-%d"], help="The last date, inclusive.")],
    airflow: Annotated[str, typer.Option(envvar="TIDEMARK_AIRFLOW_URL", metavar="URL", help="Airflow's base URL.")],
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help=f"A file with Airflow's token; default: the variable {TOKEN}.")
    ] = None,
    mode: Annotated[Mode, typer.Option(help="What to do with the dates.")] = "rebuild",
    run: Annotated[bool, typer.Option("--run", help="Run it; without this option it is a dry run.")] = False,
    reason: Annotated[str | None, typer.Option(help="Why; required if a table is rewritten.")] = None,
    exchange: Annotated[
        Exchange,
        typer.Option(help="One commit for all dates, or one for each date or dates that exchange rows."),
    ] = "together",
    extend: Annotated[bool, typer.Option("--extend", help="Also the dates that exchange rows with these.")] = False,
    differences: Annotated[bool, typer.Option(help="Before a rebuild, report the rows that change.")] = True,
    configuration: Annotated[str | None, typer.Option(help="Refuse unless the topics file has these settings.")] = None,
    schema_version: Annotated[
        int | None, typer.Option(min=1, help="With --mode schema: the version that waits to be accepted.")
    ] = None,
    max_gib: Annotated[int, typer.Option(min=1, help="Refuse to read more of a topic.")] = DEFAULTS["max_gib"],
    approve_above_gib: Annotated[
        int | None, typer.Option(min=0, help="Wait for an approval above this; at most the deployment's own limit.")
    ] = None,
    wait: Annotated[bool, typer.Option(help="Wait for the end, and show the reports.")] = True,
    timeout: Annotated[int, typer.Option(min=1, help="Wait at most so many minutes.")] = 24 * 60,
    output: As = "text",
) -> None:
    """Rebuild dates of tables, or show the changes that this would make, through Airflow's backfill DAG.

    Exits with 1 if the run failed or was rejected, or a comparison found rows that differ; with 2 if the form is
    refused; with 3 if the run has not ended in time. Airflow refuses what its user may not do.
    """
    server = Airflow(airflow, read_token(token_file))
    conf: dict[str, Any] = {
        "topics": topics,
        "from_date": first.date().isoformat(),
        "to_date": last.date().isoformat(),
        "mode": mode,
        "exchange": exchange,
        "dry_run": not run,
        "extend": extend,
        "differences": differences,
        "max_gib": max_gib,
    }
    given = {
        "reason": reason,
        "configuration": configuration,
        "schema_version": schema_version,
        "approve_above_gib": approve_above_gib,
    }
    conf |= {name: value for name, value in given.items() if value is not None}
    check_form(conf, today=utc_now().date())
    started = server.start(DAG, conf)
    url = f"{server.url}/dags/{DAG}/runs/{started}"
    typer.echo(f"started {url}", err=True)
    state = _ended(server, started, time.monotonic() + 60 * timeout) if wait else "started"
    failures = dict(server.failures(DAG, started)) if state == "failed" else {}
    name = report_name(started)
    reports = {topic: server.report(topic, name) if wait else None for topic in dict.fromkeys(topics)}
    answer = {"run": started, "url": url, "state": state, "failures": failures, "reports": reports}
    if output == "json":
        typer.echo(json.dumps(answer, ensure_ascii=False))
    else:
        typer.echo("\n\n".join([*(_text(report) for report in reports.values() if report), f"{started}: {state}"]))
    for task, message in failures.items():
        typer.echo(f"{task}: {message}", err=True)
    raise typer.Exit(_code(state, failures, [report for report in reports.values() if report]))


def _ended(server: Airflow, run: str, until: float) -> str:
    """The state in which the run ended; ``running`` or ``waiting for approval`` if it has not ended in time."""
    asked = False
    while (state := server.state(DAG, run)) not in {"success", "failed"}:
        waits = any(task["state"] == "awaiting_input" for task in server.tasks(DAG, run))
        if waits and not asked:
            typer.echo(f"waits for approval: {server.url}/required_actions", err=True)
        asked = asked or waits
        if time.monotonic() >= until:
            return "waiting for approval" if waits else state
        time.sleep(2.0)
    return state


def _text(report: dict[str, Any]) -> str:
    return text(*sections(BackfillReport.from_json(report)))


def _code(state: str, failures: dict[str, str], reports: list[dict[str, Any]]) -> int:
    if state == "failed":
        return 2 if "validate" in failures else 1
    if state not in {"success", "started"}:
        return 3
    differ = any((report["comparison"] or {}).get("differences") for report in reports if report["state"] == "compared")
    return int(differ or any(report["state"] == "rejected" for report in reports))
