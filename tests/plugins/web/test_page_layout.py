"""The continuity page in windows of three widths, light and dark: nothing leaves its box, and nothing is cut."""

from __future__ import annotations

import random

import pytest
from selenium.webdriver.common.keys import Keys

from tests.plugins.web.page_server import PageServer
from tests.plugins.web.page_world import PACK
from tests.plugins.world import CLUSTER
from tests.support.accessibility import violations
from tests.support.browser import Browser
from tests.support.layout import broken_words, overflows
from tidemark.monitoring.judgement import STATES

ORDERS = f"?topic={CLUSTER}/orders"
WIDTHS = (1280, 768, 390)
SCHEMES = ("light", "dark")
ESSENTIAL = (1280, "light")
"""What `make test` looks at."""
_CHART = """
const module = await import("./static/chart.js");
const points = [[0, 0], [300000, arguments[1]]];
const [axis, steps] = [[-3600000, 600000], module[arguments[0]]];
const node = module.chart({title: "Lag", points, axis, format: String, steps});
const texts = [...node.querySelectorAll("svg text")].map((one) => one.textContent);
return [texts, node.querySelector("figcaption").textContent];
"""
_AS_IF = """
const [fetched, now] = [window.fetch, Date.now()];
window.fetch = async (path, options) => {
  const answer = await fetched(path, options);
  if (!path.endsWith("/orders")) return answer;
  return new Response(JSON.stringify({...(await answer.json()), state: arguments[0]}), {status: answer.status});
};
Date.now = () => now + 60000 * (1 + arguments[1]);
document.dispatchEvent(new Event("visibilitychange"));
"""
_SIDE_BY_SIDE = """
const boxOf = (css) => document.querySelector(css).getBoundingClientRect();
const [month, detail] = [".month:has([aria-pressed])", ".detail"].map(boxOf);
return [detail.left - month.right, detail.top - month.top, detail.top - month.bottom].map(Math.round);
"""
_COLUMNS = "return getComputedStyle(document.querySelector(arguments[0])).gridTemplateColumns.split(' ').length"
_SCROLLS = "return arguments[0].scrollWidth > arguments[0].clientWidth"
_CELLS = ("td", "th")
_IN_VIEW = """
const at = document.querySelector("dialog button[type=submit]").getBoundingClientRect();
return at.top >= 0 && at.bottom <= innerHeight && document.elementFromPoint(at.x + 9, at.y + 9).type === "submit";
"""


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
    narrow = shown.run("return innerWidth") == min(WIDTHS)
    if narrow:
        assert not shown.run(_SCROLLS, shown.first("[aria-label='Topics by health']"))
        told = [
            one.text for one in shown.first("tbody tr").find_elements("css selector", "*") if one.tag_name in _CELLS
        ]
        state, name, behind, committed = filter(None, told)
        assert (state, name) == ("✕\nGap\n3 incidents", f"{CLUSTER}/orders")
        assert behind.startswith("490")
        assert committed.endswith(" s ago")
    shown.get(f"{server.url}{ORDERS}&dt=2026-03-24")
    shown.first(".card h3", text="2026-03-24")
    shown.first(".columns", text="kafka_offset long")
    right, top, below = shown.run(_SIDE_BY_SIDE)
    assert 0 < below < 20 if narrow else (0 < right < 20 and top < 20)
    if narrow:
        assert [shown.run(_COLUMNS, one) for one in (".glance", ".facts")] == [2, 2]
    assert broken_words(shown, "#crumbs, h1, .facts") == []
    shown.run("for (const one of document.querySelectorAll('details')) one.open = true")
    shown.first(".flow h3", text="Readers")
    assert overflows(shown, "html") == []
    shown.click(".chip", text="As a table")
    shown.first("[aria-label=Partitions] td")
    assert overflows(shown, "html") == []


@pytest.mark.sampled(2)
def test_a_topic_in_each_state_keeps_what_it_shows(shown: Browser, server: PageServer) -> None:
    for number, state in enumerate(STATES):
        shown.get(f"{server.url}{ORDERS}")
        shown.first(".columns", text="kafka_offset long")
        shown.run(_AS_IF, state, number)
        shown.first(f"h1 .badge.{state}")
        assert overflows(shown, "html") == [], state
    assert violations(shown) == []


@pytest.mark.sampled(2)
def test_dialogs_keep_what_they_show(shown: Browser, server: PageServer) -> None:
    shown.get(f"{server.url}{ORDERS}&backfill=1&from_date=2026-03-24")
    shown.first("dialog #field-approve_above_gib")
    assert overflows(shown, "dialog") == []
    assert shown.run(_IN_VIEW)
    shown.click("dialog button", text="Start the run")
    shown.first("dialog form [role=alert]", text="This cannot be")
    assert overflows(shown, "dialog") == []
    assert shown.run(_IN_VIEW)
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
        assert texts[-2:] == ["23:00", "00:10 UTC"], "the axis is what was asked for, not what there are samples of"
