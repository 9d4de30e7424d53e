"""Reports of backfills: a page for people, which needs no script, and JSON. Users who see a topic see its reports."""

from __future__ import annotations

from html import escape
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, HTTPException, Path, Query, Request, status
from fastapi.responses import HTMLResponse

from tidemark.backfill.report import BackfillReport, read_report
from tidemark.backfill.report_tables import Section, sections
from tidemark.backfill.request import report_name
from tidemark.errors import NotFound
from tidemark.table.delta_table import open_topic_table
from tidemark.topics import TopicSettings
from tidemark_airflow.links.urls import base_url
from tidemark_airflow.web.auth import Seen
from tidemark_airflow.web.models import ReportAnswer, ReportPart
from tidemark_airflow.web.reader import reader

REFRESH_SECONDS = 5

router = APIRouter()

Name = Annotated[str, Path(pattern="^[0-9a-f]{16}$", description="the first digits of the run's SHA-256")]


@router.get("/reports/{cluster}/{topic}/{name}", response_class=HTMLResponse, include_in_schema=False)
def report_page(request: Request, topic: Seen, name: Name) -> HTMLResponse:
    """The report as a page; reloaded every few seconds while its run is under way."""
    return HTMLResponse(html_of(_found(topic, name), request.scope["root_path"], name))


@router.get("/api/reports/{cluster}/{topic}/{name}")
def report_json(topic: Seen, name: Name) -> dict[str, Any]:
    """All parts of the report so far, and its state."""
    return _found(topic, name).as_json()


@router.get("/api/reports/{cluster}/{topic}")
def report_of_run(topic: Seen, run: Annotated[str, Query(max_length=250)]) -> ReportAnswer:
    """The report of the run ``run`` of the backfill DAG so far, as tables; without any before it begins."""
    name = report_name(run)
    try:
        report = read_report(open_topic_table(reader().deployment(), topic), name)
    except NotFound:
        return ReportAnswer(name=name, state="", done=False, parts=[])
    parts = [ReportPart(**section._asdict()) for section in sections(report)]
    return ReportAnswer(name=name, state=report.state, done=report.done, parts=parts)


def _found(topic: TopicSettings, name: str) -> BackfillReport:
    try:
        return read_report(open_topic_table(reader().deployment(), topic), name)
    except NotFound as error:
        rule = f"there is no report {name} of {topic.cluster}/{topic.topic}"
        raise HTTPException(status.HTTP_404_NOT_FOUND, rule) from error


def html_of(report: BackfillReport, root: str, name: str) -> str:
    """The page of ``report``, below the path ``root``; all texts from outside are escaped."""
    request = report.request
    title = f"Backfill of {escape(request.label)}"
    again = "" if report.done else f'<meta http-equiv="refresh" content="{REFRESH_SECONDS}">'
    run = f"{base_url()}/dags/tidemark_backfill/runs/{quote(request.run, safe='')}"
    data = f"{root}/api/reports/{quote(request.cluster)}/{quote(request.topic)}/{name}"
    links = [(run, "The run in Airflow"), (f"{root}/?topic={quote(request.label)}", "The topic"), (data, "As JSON")]
    return "\n".join(
        [
            "<!doctype html>",
            f'<html lang="en"><head><meta charset="utf-8"><title>{title}: {escape(report.state)}</title>',
            f'<meta name="viewport" content="width=device-width, initial-scale=1">{again}',
            f'<link rel="icon" type="image/svg+xml" href="{root}/static/icon.svg">',
            f'<link rel="stylesheet" href="{root}/static/report.css"></head><body>',
            f'<header><h1>{title}</h1><p class="state" role="status">{escape(report.state)}</p></header>',
            f'<nav aria-label="Elsewhere">{"".join(_link(*link) for link in links)}</nav>',
            "<main>",
            *(_section(number, section) for number, section in enumerate(sections(report))),
            "</main></body></html>",
        ]
    )


def _link(href: str, text: str) -> str:
    return f'<a href="{escape(href)}">{text}</a> '


def _section(number: int, section: Section) -> str:
    note = f"<p>{escape(section.note)}</p>" if section.note else ""
    heading = f"<h2>{escape(section.title)}</h2>"
    return f'<section id="part-{number}">{heading}{note}{_table(section) if section.rows else ""}</section>'


def _table(section: Section) -> str:
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in section.header)
    rows = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in row[1:])}</tr>'
        for row in section.rows
    )
    label = escape(section.title)
    return (
        f'<div class="scroll" role="region" aria-label="{label}" tabindex="0">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )
