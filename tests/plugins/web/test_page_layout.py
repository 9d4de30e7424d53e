"""The continuity page in windows of three widths, light and dark: nothing leaves its box, and nothing is cut."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI, HTTPException
from selenium.webdriver.common.keys import Keys

from tests.plugins.web.page_server import ANN, PageServer
from tests.plugins.web.page_world import PACK, PageWorld
from tests.plugins.world import CLUSTER
from tests.support.browser import Browser
from tests.support.layout import broken_words, overflows
from tidemark_airflow.dag_factories.backfill import DAG_ID, form

ORDERS = f"?topic={CLUSTER}/orders"
WIDTHS = (1280, 768, 390)
SCHEMES = ("light", "dark")
ESSENTIAL = (1280, "light")
"""What `make test` looks at."""
_CHART = """
const module = await import("./static/chart.js");
const points = [[0, 0], [300000, arguments[1]]];
const node = module.chart({title: "Lag", points, format: String, steps: module[arguments[0]]});
const texts = [...node.querySelectorAll("svg text")].map((one) => one.textContent);
return [texts, node.querySelector("figcaption").textContent];
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    """The page, and of Airflow's API what describes the form of backfills."""
    home = tmp_path_factory.mktemp("page")
    airflow = FastAPI()
    world = PageWorld(home / "world")

    @airflow.get(f"/api/v2/dags/{DAG_ID}/details")
    def details() -> dict[str, Any]:
        return {"is_paused": True, "params": {name: one.dump() for name, one in form(world.deployment).items()}}

    @airflow.post(f"/api/v2/dags/{DAG_ID}/dagRuns")
    def refused() -> None:
        raise HTTPException(400, f"This cannot be: {'x' * 200}")

    world.add_brokersets()
    with PageServer(world, home, app=airflow) as running:
        yield running


@pytest.fixture(scope="module")
def browser(starts_browser: None, server: PageServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as running:
        running.set_cookie(server.url, "_token", server.token(ANN))
        yield running


@pytest.fixture(
    params=[
        pytest.param((width, scheme), marks=pytest.mark.essential if (width, scheme) == ESSENTIAL else ())
        for width in WIDTHS
        for scheme in SCHEMES
    ],
    ids=lambda one: f"{one[0]} {one[1]}",
)
def shown(request: pytest.FixtureRequest, browser: Browser) -> Browser:
    """The browser, with a window of one of the widths, in one of the schemes."""
    width, scheme = request.param
    browser.set_width(width)
    browser.prefer(prefers_color_scheme=scheme)
    return browser


@pytest.mark.sampled(2)
def test_pages_keep_what_they_show(shown: Browser, server: PageServer) -> None:
    shown.get(server.url)
    shown.first("th a", text="orders")
    shown.first("[aria-labelledby=brokersets] td")
    assert overflows(shown, "html") == []
    shown.get(f"{server.url}{ORDERS}&dt=2026-03-24")
    shown.first(".card h3", text="2026-03-24")
    assert broken_words(shown, "#crumbs, h1, .facts") == []
    shown.run("for (const one of document.querySelectorAll('details')) one.open = true")
    shown.first(".flow h3", text="Readers")
    assert overflows(shown, "html") == []
    shown.click(".chip", text="As a table")
    shown.first("[aria-label=Partitions] td")
    assert overflows(shown, "html") == []


@pytest.mark.sampled(2)
def test_dialogs_keep_what_they_show(shown: Browser, server: PageServer) -> None:
    shown.get(f"{server.url}{ORDERS}&backfill=1&from_date=2026-03-24")
    shown.first("dialog #field-approve_above_gib")
    assert overflows(shown, "dialog") == []
    shown.click("dialog button", text="Start the run")
    shown.first("dialog form .bad", text="This cannot be")
    assert overflows(shown, "dialog") == []
    shown.press(Keys.ESCAPE)

    shown.click("button", text="Acknowledge")
    shown.first("#reason")
    assert overflows(shown, "dialog") == []
    shown.press(Keys.ESCAPE)

    for span in ("partition=0&from=0&to=300", "partition=1&from=390&to=400"):
        shown.get(f"{server.url}{ORDERS}&{span}")
        shown.first("dialog td")
        assert overflows(shown, "dialog") == []


def test_a_tables_address_is_broken_after_slashes(browser: Browser, server: PageServer) -> None:
    browser.set_width(WIDTHS[0])
    browser.get(f"{server.url}{ORDERS}")
    browser.first(".facts code")
    for width in range(900, 1290, 30):
        browser.set_width(width)
        assert broken_words(browser, ".facts code") == [], width


@pytest.mark.essential
def test_a_pack_is_no_segment(browser: Browser, server: PageServer) -> None:
    browser.get(f"{server.url}{ORDERS}&partition=1&from=390&to=400")
    browser.first("dialog h3", text="Packs")
    landed, pack = [
        [cell.text for cell in row.find_elements("css selector", "td")] for row in browser.all("dialog tbody tr")
    ]
    assert landed[-1] == f"{PACK.digits}.pack 0 to 5"
    assert [pack[at] for at in (0, 1, 2, 4, 5)] == [str(PACK), "in the store", "5 B", str(PACK.broker), "disk"]
    assert "No segment holds any of them." in browser.first("dialog").text


@pytest.mark.parametrize("steps", ["COUNTS", "SECONDS"])
def test_a_chart_has_lines_at_round_values(
    steps: str, browser: Browser, server: PageServer, rng: random.Random
) -> None:
    browser.get(server.url)
    for most in (0, 1, 2, 7, 200, *(rng.randrange(10 ** rng.randint(1, 9)) for _ in range(20))):
        texts, caption = browser.run(_CHART, steps, most)
        zero, middle, top, *_ = map(float, texts[:3])
        assert zero == 0
        assert top == 2 * middle
        assert middle >= 1
        assert str(int(middle)).rstrip("0") in {"1", "2", "5"} or steps == "SECONDS"
        assert 1.1 * most <= top <= max(2, 10 * most)
        assert caption == f"Lag {most} at 00:05 UTC"
