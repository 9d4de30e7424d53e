"""The report page: a person's text is shown as text, by who may see the topic, and in a way that all can read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.plugins.operators.test_backfill import FORM, NAME, RUN, shown
from tests.plugins.web.page_server import NOBODY, VIC, PageServer
from tests.plugins.world import CLUSTER, World
from tests.support.accessibility import violations
from tests.support.browser import Browser
from tidemark.backfill.report import BackfillOutcome, DateChange, RecordCounts, read_report, write_part
from tidemark.backfill.request import check_request
from tidemark.timestamps import utc_now

EVIL = '<img src=x onerror="alert(1)"> & "more"'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    """One topic, of which one report is complete."""
    home = tmp_path_factory.mktemp("reports")
    world = World(home / "world")
    form = FORM | {"dry_run": False, "reason": EVIL}
    [request] = check_request(world.deployment, form, today=utc_now().date(), by=EVIL, run=RUN)
    change = DateChange(dt="2026-01-01", before=RecordCounts(landed=3), after=RecordCounts(landed=2, quarantined=1))
    table = world.table()
    write_part(table, NAME, "request", request)
    write_part(table, NAME, "preview", shown())
    write_part(table, NAME, "outcome", BackfillOutcome(status="landed", attempt=7, ledger_n=4, dates=(change,)), 7)
    with PageServer(world, home) as running:
        yield running


def test_a_report_is_shown_as_text_and_without_scripts(server: PageServer) -> None:
    with server.client(VIC) as client:
        page = client.get(f"reports/{CLUSTER}/orders/{NAME}")
        data = client.get(f"api/reports/{CLUSTER}/orders/{NAME}")

    assert page.status_code == 200
    assert "<img" not in page.text
    assert "&lt;img src=x onerror=&quot;alert(1)&quot;&gt; &amp; &quot;more&quot;" in page.text
    assert "<script" not in page.text
    assert "http-equiv" not in page.text, "nothing more will come"
    assert data.json()["state"] == read_report(server.world.table(), NAME).state == "landed"


def test_a_runs_report_is_found_by_its_run_with_the_tables_that_people_see(server: PageServer) -> None:
    with server.client(VIC) as client:
        found = client.get(f"api/reports/{CLUSTER}/orders", params={"run": RUN}).json()
        early = client.get(f"api/reports/{CLUSTER}/orders", params={"run": "another"}).json()
    assert (early["state"], early["done"], early["parts"]) == ("", False, [])
    assert (found["name"], found["state"], found["done"]) == (NAME, "landed", True)
    assert [part["title"] for part in found["parts"]] == ["Backfill", "What it does", "Dates as they are", "Result"]
    assert ["Segments read", "1"] in found["parts"][1]["rows"]


def test_a_page_whose_run_goes_on_is_drawn_anew(server: PageServer) -> None:
    table = server.world.table()
    other = "0" * 16
    write_part(table, other, "request", read_report(table, NAME).request)

    with server.client(VIC) as client:
        assert '<meta http-equiv="refresh" content="5">' in client.get(f"reports/{CLUSTER}/orders/{other}").text


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (f"{CLUSTER}/orders/{'f' * 16}", 404),
        (f"{CLUSTER}/nope/{NAME}", 404),
        (f"{CLUSTER}/orders/..%2F..%2Fledger", 404),
        (f"{CLUSTER}/orders/{NAME.upper()}", 422),
    ],
)
def test_what_is_no_report_is_not_looked_for(server: PageServer, path: str, status: int) -> None:
    with server.client(VIC) as client:
        assert client.get(f"api/reports/{path}").status_code == status


def test_who_may_not_see_the_topic_sees_no_report(server: PageServer) -> None:
    with server.client(NOBODY) as client:
        assert client.get(f"reports/{CLUSTER}/orders/{NAME}").status_code in {403, 404}


@pytest.mark.essential
def test_a_report_is_readable_by_all(starts_browser: None, server: PageServer, tmp_path: Path) -> None:
    with Browser(tmp_path) as browser:
        browser.set_cookie(server.url, "_token", server.token(VIC))
        for scheme in ("light", "dark"):
            browser.prefer(prefers_color_scheme=scheme)
            browser.get(f"{server.url}reports/{CLUSTER}/orders/{NAME}")
            assert browser.first("h1").text == f"Backfill of {CLUSTER}/orders"
            assert violations(browser) == []
        assert browser.console() == []
