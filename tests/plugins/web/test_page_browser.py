"""The continuity page in Chromium: in a real Airflow, signed in by its form; and at a size that must not matter."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from tests.plugins.shared_stack import SharedStack
from tests.plugins.web.page_server import ANN, PageServer
from tests.plugins.web.page_world import EVIL, PageWorld
from tests.plugins.world import CLUSTER, World, commit, entry, state
from tests.support.accessibility import violations
from tests.support.browser import Browser
from tidemark.formats.keys import ControlKeys
from tidemark.formats.raw.gaps import Acknowledgement
from tidemark.formats.table.statuses import AUDIT_PARTS, AuditedPart, StateStatus
from tidemark.timestamps import utc_now
from tidemark_airflow.web.reader import reader

ORDERS = f"?topic={CLUSTER}/orders"
GAP_NAMED = "Gap: offsets 120 to 159 (40) are missing, deleted before upload; known since 2026-01-01 00:00 UTC."
INGEST = f"tidemark_ingest__{CLUSTER}__orders"
MOST_NODES = 3000
_ANSWERED = (
    "return performance.getEntriesByType('resource').filter((one) => one.name.endsWith('api/brokersets')).length"
)


@pytest.fixture(scope="module")
def world(stack: SharedStack) -> PageWorld:
    return PageWorld(stack.page, owner=f"team {EVIL}")


@pytest.fixture(scope="module")
def browser(starts_browser: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as running:
        yield running


def page(stack: SharedStack, query: str = "") -> str:
    return f"{stack.url}/tidemark/{query}"


def sign_in(browser: Browser, stack: SharedStack, user: str, query: str) -> None:
    """Open the page, be led to Airflow's login, sign in there, and be led back."""
    password = json.loads((stack.home / "passwords.json").read_text())[user]
    browser.clear_cookies()
    browser.get(page(stack, query))
    browser.first("input[name=username]").send_keys(user)
    browser.first("input[name=password]").send_keys(password)
    browser.click("button[type=submit]")
    browser.wait(
        lambda: browser.current_url == page(stack, query), what=f"{user} to be led back from {browser.current_url}"
    )


def words(world: PageWorld) -> list[Acknowledgement]:
    keys = [one.key for one in world.raw.list(ControlKeys("", CLUSTER).acknowledgements("orders", 0))]
    return [Acknowledgement.from_bytes(world.raw.get(key).body, key) for key in keys]


def test_who_may_only_look_sees_the_gap_and_cannot_acknowledge(
    stack: SharedStack, browser: Browser, world: PageWorld
) -> None:
    sign_in(browser, stack, "vic", ORDERS)
    assert GAP_NAMED in browser.first(".finding.gap").text
    assert f"takes the right to edit the DAG {INGEST}" in browser.first(".finding.gap").text
    assert browser.first(".strip .gap").get_dom_attribute("aria-label") == (
        "120 to 159 (40 offsets): gap: deleted before upload, known since 2026-01-01 00:00 UTC"
    )
    assert not [one for one in browser.all("button") if one.text.startswith("Acknowledge")]
    browser.first(".calendar button")
    assert browser.console() == []

    status = browser.run(
        "return fetch(arguments[0], {method: 'POST', body: arguments[1],"
        " headers: {'Content-Type': 'application/json', 'X-Tidemark-Request': 'test'}}).then((it) => it.status)",
        f"api/topics/{CLUSTER}/orders/acknowledgements",
        json.dumps({"partition": 0, "start": 120, "end": 160, "reason": "I want to"}),
    )
    assert status == 403
    assert words(world) == []
    browser.console()  # Chromium reports the refused request


def test_all_views_are_accessible_in_light_and_dark(stack: SharedStack, browser: Browser) -> None:
    sign_in(browser, stack, "ann", "")
    for scheme in ("light", "dark"):
        browser.prefer(prefers_color_scheme=scheme)
        browser.get(page(stack))
        browser.first("th a", text="orders")
        assert violations(browser) == [], f"topics, {scheme}"
        browser.get(page(stack, ORDERS))
        browser.click(".calendar .final_incomplete")
        browser.first(".card h3", text="2026-04-01")
        assert violations(browser) == [], f"topic, {scheme}"
        browser.click(".strip .landed")
        browser.first("dialog td", text="quarantined")
        assert violations(browser) == [], f"lineage, {scheme}"
        browser.press(Keys.ESCAPE)
    browser.prefer(prefers_color_scheme="light")
    assert browser.console() == []


def test_a_strip_is_walked_by_keys(stack: SharedStack, browser: Browser) -> None:
    browser.get(page(stack, ORDERS))
    browser.first(".strip")
    browser.run("document.querySelector('.strip button').focus()")
    browser.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert browser.run("return document.activeElement.className") == "span uploaded"
    assert "160 to 299" in browser.first(".tip").text
    browser.press(Keys.ENTER)
    browser.first("dialog h2", text="160 to 299")
    assert "from=160&to=300" in browser.current_url
    browser.press(Keys.ESCAPE)
    assert browser.run("return document.activeElement.className") == "span uploaded"


def test_the_data_flow_is_counted_when_it_is_opened(stack: SharedStack, browser: Browser, world: PageWorld) -> None:
    assert world.table().topic.table == "orders"
    stack.client.wait_for_dag(INGEST)
    sign_in(browser, stack, "ann", ORDERS)
    browser.first(".calendar button")
    assert not browser.all(".flow")
    browser.run("document.getElementById('flow').closest('summary').focus()")
    browser.press(Keys.ENTER)
    browser.first(".flow h3", text="Readers")
    steps = [one.text for one in browser.all(".flow li")]
    assert [one.partition("\n")[0] for one in steps] == ["Topic", "Raw", "Table", "Readers"]
    assert "kafka-1/orders" in steps[1]
    assert "8 partitions: 1 segment" in steps[1]
    assert "ledger 1: " in steps[2]
    # The example names the asset by reference.
    assert steps[3] == "Readers\ndaily_orders: orders.final"
    for scheme in ("light", "dark"):
        browser.prefer(prefers_color_scheme=scheme)
        assert violations(browser) == [], f"flow, {scheme}"
    assert browser.console() == []


def test_the_backfill_form_is_filled_in(stack: SharedStack, browser: Browser) -> None:
    stack.client.wait_for_dag("tidemark_backfill")
    browser.get(page(stack, f"{ORDERS}&dt=2026-03-24"))
    browser.click("button", text="Backfill this date")
    assert browser.first("#field-from_date").get_dom_attribute("value") == "2026-03-24"
    assert browser.first("#field-dry_run").get_dom_attribute("checked") == "true"
    assert violations(browser) == []
    browser.press(Keys.ESCAPE)

    browser.get(page(stack, f"{ORDERS}&backfill=1&from_date=2026-03-24&to_date=2026-03-25&mode=replay"))
    browser.click("dialog button", text="Start the run")
    run = browser.first("dialog [role=status] a").text
    conf = stack.client.run("tidemark_backfill", run)["conf"]
    assert {name: conf[name] for name in ("topics", "from_date", "to_date", "mode", "dry_run")} == {
        "topics": [f"{CLUSTER}/orders"],
        "from_date": "2026-03-24",
        "to_date": "2026-03-25",
        "mode": "replay",
        "dry_run": True,
    }
    assert browser.console() == []


def test_airflow_leads_to_the_page_and_the_page_out_of_its_frame(stack: SharedStack, browser: Browser) -> None:
    stack.client.wait_for_dag(INGEST)
    browser.get(f"{stack.url}/dags/{INGEST}/plugin/tidemark-continuity")
    browser.switch_to.frame(browser.first("iframe"))
    browser.first("h1", text="orders")
    browser.click("a", text="Ingest DAG")
    browser.switch_to.default_content()
    browser.wait(lambda: browser.current_url.endswith(f"/dags/{INGEST}"), what="the DAG's own page")
    browser.get(f"{stack.url}/plugin/continuity")
    browser.switch_to.frame(browser.first("iframe"))
    browser.click("th a", text="orders")
    browser.first("h1", text="orders")
    assert not browser.first(".brand").is_displayed()
    browser.wait(lambda: browser.first("#asof").is_displayed(), what="when the page was read")
    browser.switch_to.default_content()
    kept = f"/plugin/continuity/tidemark/{ORDERS}"
    browser.wait(lambda: browser.current_url.endswith(kept), what="the frame's address in Airflow's")
    browser.get(f"{stack.url}{kept}")
    browser.switch_to.frame(browser.first("iframe"))
    browser.first("h1", text="orders")
    browser.switch_to.default_content()
    views = [view for plugin in stack.client.get("/plugins")["plugins"] for view in plugin["external_views"]]
    assert [(one["destination"], one["href"]) for one in views if one["name"] == "Continuity"] == [
        ("nav", "/tidemark/"),
        ("dag", "/tidemark/?dag_id={DAG_ID}"),
    ]
    assert stack.client.get("/plugins/importErrors")["import_errors"] == []
    browser.console()  # Airflow's own


def test_who_may_acknowledges_a_gap(stack: SharedStack, browser: Browser, world: PageWorld) -> None:
    browser.get(page(stack, ORDERS))
    browser.click("button", text="Acknowledge")
    assert violations(browser) == []
    browser.first("#reason").send_keys(f"The disk is gone {EVIL}")
    browser.click("dialog button", text="Give up 40 offsets")
    assert "Acknowledged by ann at 20" in browser.first(".finding.said", text="The disk is gone").text
    assert [(one.start, one.end, one.by, one.reason) for one in words(world)] == [
        (120, 160, "ann", f"The disk is gone {EVIL}")
    ]
    assert EVIL in browser.first(".facts").text
    assert browser.run("return [document.title, document.querySelectorAll('main img').length]") == [
        f"{CLUSTER}/orders · Continuity",
        0,
    ]
    assert browser.console() == []


@pytest.mark.essential
def test_brokersets_are_shown_where_they_are_configured(browser: Browser, tmp_path: Path) -> None:
    world = PageWorld(tmp_path / "world")
    with PageServer(world, tmp_path) as server:
        browser.set_cookie(server.url, "_token", server.token(ANN))
        browser.get(server.url)
        browser.first("th a", text="orders")
        browser.wait(lambda: browser.run(_ANSWERED) == 1, what="the answer about brokersets")
        assert browser.run("return document.getElementById('brokersets')") is None, "none is configured"

        path = world.add_brokersets()
        browser.get(server.url)
        browser.first("#brokersets")
        busy, quiet = [one.text.splitlines() for one in browser.all("section tbody tr")]
        assert busy[:2] == [f"{CLUSTER}/busy", "3 brokers, 3 partitions"]
        told = [*busy[2:], *quiet]
        for part in ("5.7 MiB/s", "482.8 GiB a day", "broker 23, without 22", "95 % of 4.0 MiB/s at worst", "57.2 MiB"):
            assert any(part in one for one in told), (part, told)
        assert any("no other broker" in one for one in quiet)
        assert "spread evenly" in browser.first("section p").text
        for scheme in ("light", "dark"):
            browser.prefer(prefers_color_scheme=scheme)
            assert violations(browser) == [], f"brokersets, {scheme}"
        browser.prefer(prefers_color_scheme="light")

        path.write_text(path.read_text().replace("4MiB", "2MiB"))
        reader.cache_clear()
        browser.get(server.url)
        assert browser.first("section .badge.exceeded").text.endswith("Over capacity")
        assert browser.console() == []


def test_a_thousand_topics_and_two_thousand_partitions_draw_little(browser: Browser, tmp_path: Path) -> None:
    world = PageWorld(tmp_path / "world")
    world.add_topics(*(f"quiet-{number:04}" for number in range(994)))
    commit(world.table("quiet-0000"), *(state(number, 10**9 + number) for number in range(2000)))
    rows = (entry("quiet-0000", n, 10**9 + n + 5, log_end=10**9 + n + 9) for n in range(2000))
    world.put_index(*rows, broker=7)
    with PageServer(world, tmp_path) as server:
        browser.set_cookie(server.url, "_token", server.token(ANN))
        browser.get(server.url)
        browser.first(".pager", text="1 to 100 of 1,000")
        nodes = "return document.querySelectorAll('*').length"
        assert browser.run(nodes) < MOST_NODES
        browser.first("#search").send_keys("quiet-0000")
        browser.wait(lambda: len(browser.all("tbody tr")) == 1, what="the one topic that is sought")

        browser.get(f"{server.url}?topic={CLUSTER}/quiet-0000&partition=1999")
        browser.first(".asked", text="1999")
        browser.first(".pager", text="1,951 to 2,000 of 2,000")
        assert browser.run(nodes) < MOST_NODES
        assert browser.console() == []


@pytest.mark.essential
def test_a_state_table_is_among_the_facts_with_its_doubts(browser: Browser, tmp_path: Path) -> None:
    world = World(tmp_path / "world", "orders", state={})
    commit(world.table(), state(0, 10))
    now = utc_now()
    audits = {part: AuditedPart(at=now - timedelta(days=3), n=4) for part in range(AUDIT_PARTS)}
    status = StateStatus(
        cluster=CLUSTER, topic="orders", table=EVIL, at=now, n=4, of=9, rows=7, quarantined=3, audits=audits
    )
    world.table().store.put(world.table().keys.deployment.state_status("orders"), status.to_bytes())
    with PageServer(world, tmp_path) as server:
        browser.set_cookie(server.url, "_token", server.token(ANN))
        browser.get(f"{server.url}{ORDERS}")
        fact = browser.first(".facts dd", text="as of ledger 9").text
        known = f"{EVIL}, 7 rows, as of ledger 9; records in quarantine: 3"
        assert fact == f"{known}; the oldest audit of a key: 3 days ago"
        assert violations(browser) == []
        assert browser.console() == []
