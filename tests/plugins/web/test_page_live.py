"""The page while somebody looks at it: it stays true, answers at a glance, and does what one click can do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from selenium.webdriver.common.keys import Keys

from tests.plugins.operators.test_backfill import NAME, RUN, shown
from tests.plugins.web.page_server import PageServer
from tests.plugins.world import CLUSTER, commit, state
from tests.support.accessibility import violations
from tests.support.browser import Browser
from tidemark.backfill.report import write_part
from tidemark.backfill.request import DEFAULTS, check_request
from tidemark.timestamps import utc_now
from tidemark_airflow.web.reader import reader

ORDERS = f"?topic={CLUSTER}/orders"
_LATER = "const now = Date.now; Date.now = () => now() + 1000 * arguments[0]"
_OBSERVED = "return [...document.querySelectorAll('.facts time')].at(-1).textContent"
_READS = """
return performance.getEntriesByType("resource").filter((one) => one.name.endsWith("/orders")).length
"""
_HIDE = "Object.defineProperty(document, 'hidden', {get: () => arguments[0], configurable: true})"
_BREAK = "window.fetch = () => Promise.reject(new TypeError('gone'))"
_VALUES = """
const controls = document.querySelector("dialog form").elements;
return [...arguments].map((one) => controls[one].value);
"""
_FIELDS = """
const fields = [...document.querySelectorAll("dialog .field")].filter((one) => one.checkVisibility());
return fields.map((one) => one.querySelector("[name]").name);
"""
_REMEDY = """
const {remedy} = await import("./static/incidents.js");
const node = document.createElement("p");
node.append(...remedy(arguments[0]).flat(9));
return [node.textContent, [...node.querySelectorAll("code")].map((one) => one.textContent)];
"""


@pytest.fixture
def orders(browser: Browser, server: PageServer) -> Iterator[Browser]:
    """The topic ``orders``, read; the browser writes no error."""
    browser.set_width(1280)
    browser.get(f"{server.url}{ORDERS}")
    browser.first(".columns", text="kafka_offset long")
    browser.console()
    yield browser
    assert browser.console() == []


@pytest.mark.essential
def test_ages_tick_and_the_data_are_read_again(orders: Browser, server: PageServer) -> None:
    first, old = orders.first("#asof").text, orders.run(_OBSERVED)
    assert first.startswith("as of ")
    assert "Ledger\n1" in orders.first(".facts").text
    orders.run("document.querySelector('.actions .main').focus()")
    commit(server.world.table(), state(1, 430))
    reader.cache_clear()
    orders.run(_LATER, 100)
    orders.wait(lambda: "Ledger\n2" in orders.first(".facts").text, what="the new commit")
    assert orders.first("#asof").text != first
    assert orders.run(_OBSERVED) != old
    assert orders.run("return document.activeElement.textContent") == "Backfill …", "the focus stays"


@pytest.mark.essential
def test_nothing_is_read_while_nobody_can_see_it_or_a_dialog_is_open(orders: Browser) -> None:
    def ticks(seconds: int) -> None:
        old = orders.run(_OBSERVED)
        orders.run(_LATER, seconds)
        orders.wait(lambda: orders.run(_OBSERVED) != old, what="an age to tick")

    orders.click("button", text="Backfill …")
    orders.first("dialog form")
    reads = orders.run(_READS)
    ticks(100)
    assert "paused" in orders.first("#asof").text
    orders.run(_HIDE, True)
    orders.click("dialog [aria-label=Close]")
    ticks(1000)
    assert orders.run(_READS) == reads
    orders.run(_HIDE, False)
    orders.wait(lambda: orders.run(_READS) > reads, what="the data to be read again")


@pytest.mark.essential
def test_data_that_cannot_be_read_again_are_said_to_be_old(orders: Browser) -> None:
    first = orders.first("#asof").text
    orders.run(_BREAK)
    orders.run(_LATER, 60)
    told = orders.first("#asof.warn").text
    assert told == f"{first}: not read since, Airflow's API server does not answer."
    assert "Gap" in orders.first("h1").text, "what is known stays"


@pytest.mark.essential
def test_a_glance_answers_what_people_ask_first(orders: Browser) -> None:
    right, age, missing, agents = [one.text.splitlines() for one in orders.all(".glance > div")]
    assert right[1:] == ["Offsets are missing, and nobody has acknowledged the gap.", "20 records in quarantine"]
    assert age[0] == "Newest commit"
    assert "offsets behind for 27 min" in age[2]
    assert missing == ["Missing", "40 offsets", "1 date closed incomplete"]
    assert agents[:2] == ["Agents", "1 alive, version test"]
    assert agents[2].startswith("broker 1: ")
    bottom = orders.run("return document.querySelector('.table').getBoundingClientRect().bottom")
    assert bottom < 900, "columns and query are above the fold"


@pytest.mark.essential
def test_a_query_is_copied_or_selected(orders: Browser, server: PageServer) -> None:
    duck, spark = [one.text for one in orders.all(".copyable code")]
    url = server.world.table().url
    query = "SELECT * FROM {} WHERE dt = DATE '2026-04-10' LIMIT 10"
    assert duck == query.format(f"delta_scan('{url}')")
    assert spark == query.format(f"delta.`{url}`")
    script = "Object.defineProperty(navigator, 'clipboard', {value: %s, configurable: true})"
    orders.run(script % "{writeText: async (text) => { window.copied = text; }}")
    orders.click(".copyable button")
    orders.first(".copyable button", text="Copied")
    assert orders.run("return window.copied") == duck
    orders.run(script % "undefined")
    orders.click(".copyable:last-child button")
    orders.first(".copyable button", text="Selected")
    assert orders.run("return getSelection().toString()") == spark


@pytest.mark.essential
def test_red_is_for_loss_and_amber_for_attention(orders: Browser, server: PageServer) -> None:
    color = "return getComputedStyle(document.querySelector(arguments[0])).color"
    red = orders.run(color, ".badge.gap")
    assert orders.run(color, ".incidents summary") == red
    amber = orders.run(color, ".date.final_incomplete")
    assert amber != red
    orders.get(f"{server.url}?topic={CLUSTER}/clicks")
    orders.first(".incidents")
    assert [orders.run(color, one) for one in (".badge.late", ".incidents summary")] == [amber, amber]


@pytest.mark.essential
@pytest.mark.parametrize(
    ("mend", "text", "commands"),
    [
        pytest.param(
            "correct the parser or the producer; then replay the quarantine by the backfill form (mode replay)",
            None,
            [],
            id="prose",
        ),
        pytest.param(
            "tidemark config check --agents names what to set",
            None,
            ["tidemark config check --agents"],
            id="a command in a sentence",
        ),
        pytest.param(
            "`tidemark-agent reupload a PARTITION` on a replica; spark-submit x.py --topics FILE, then wait",
            "tidemark-agent reupload a PARTITION on a replica; spark-submit x.py --topics FILE, then wait",
            ["tidemark-agent reupload a PARTITION", "spark-submit x.py --topics FILE"],
            id="quoted",
        ),
        pytest.param(
            "on broker 3, see (systemd: journalctl -u tidemark-agent | grep head_; Kubernetes: kubectl logs POD)",
            None,
            ["journalctl -u tidemark-agent | grep head_", "kubectl logs POD"],
            id="of platforms",
        ),
        pytest.param(
            "on the host of broker 3: timedatectl; chronyc tracking",
            None,
            ["timedatectl", "chronyc tracking"],
            id="of a host",
        ),
    ],
)
def test_commands_are_code_and_prose_is_prose(
    orders: Browser, mend: str, text: str | None, commands: list[str]
) -> None:
    assert orders.run(_REMEDY, mend) == [text or mend, commands]


@pytest.mark.essential
def test_a_remedy_that_is_one_click_away_is_a_button(orders: Browser) -> None:
    orders.click(".incidents button", text="Show the gaps")
    orders.wait(lambda: len(orders.all(".strips > li")) == 1, what="the partition with a gap alone")
    orders.click(".incidents button", text="Replay the quarantine")
    orders.first("dialog form")
    assert orders.run(_VALUES, "mode", "from_date", "to_date") == ["replay", "2026-01-01", "2026-01-01"]


@pytest.mark.essential
def test_the_form_shows_the_fields_of_its_mode(orders: Browser) -> None:
    orders.click("button", text="Backfill …")
    orders.first("dialog form")
    assert orders.run("return document.activeElement.name") == "topics"
    always = ["topics", "mode", "dry_run", "reason"]
    dates = ["topics", "from_date", "to_date", "mode"]
    for mode, fields in {
        "rebuild": [*dates, "exchange", "extend", "differences", "dry_run", "reason"],
        "compare": [*dates, "extend", "dry_run"],
        "missing": [*dates, "exchange", "dry_run", "reason"],
        "replay": [*dates, "extend", "dry_run", "reason"],
        "repair": always,
        "schema": ["topics", "mode", "differences", "dry_run", "reason", "schema_version"],
    }.items():
        orders.run("document.querySelector(`dialog [value=${arguments[0]}]`).click()", mode)
        assert orders.run(_FIELDS) == fields, mode
    orders.run("document.querySelector('dialog summary').focus()")
    orders.press(Keys.ENTER)
    assert orders.run(_FIELDS)[-3:] == ["configuration", "max_gib", "approve_above_gib"]
    assert violations(orders) == []


@pytest.mark.essential
def test_a_dry_runs_numbers_appear_in_its_dialog(orders: Browser, server: PageServer, runs: dict[str, str]) -> None:
    runs[RUN] = "queued"
    orders.click(".incidents button", text="Replay the quarantine")
    orders.click("dialog button", text="Start the run")
    orders.first("dialog [role=status]", text=f"The run {RUN} is queued.")
    form = {**DEFAULTS, "topics": [f"{CLUSTER}/orders"], "from_date": "2026-01-01", "to_date": "2026-01-01"}
    [request] = check_request(server.world.deployment, form | {"mode": "replay"}, today=utc_now().date(), run=RUN)
    write_part(server.world.table(), NAME, "request", request)
    runs[RUN] = "running"
    orders.first("dialog [role=status]", text=f"The run {RUN} is running: looking.")
    write_part(server.world.table(), NAME, "preview", shown())
    runs[RUN] = "success"
    orders.first("dialog .good", text=f"The run {RUN} has ended.")
    told = orders.first("dialog .reports").text
    assert f"{CLUSTER}/orders: dry run" in told
    assert "Segments read" in told
    assert orders.first("dialog .reports a").get_dom_attribute("href") == f"reports/{CLUSTER}/orders/{NAME}"
    assert violations(orders) == []
    orders.click("dialog button", text="Back to the form")
    assert orders.first("dialog button[type=submit]").is_enabled()


@pytest.mark.essential
def test_terms_explain_themselves_to_pointer_and_keyboard(orders: Browser, server: PageServer) -> None:
    orders.run("document.querySelector('.facts .hint').focus()")
    assert "When an agent last told" in orders.first(".tip").text
    orders.get(server.url)
    orders.first("th a", text="orders")
    orders.run("document.querySelector('th .hint').focus()")
    assert "newest date that is closed" in orders.first(".tip").text


@pytest.mark.essential
def test_the_reasons_of_a_quarantine_are_read_when_it_is_opened(orders: Browser) -> None:
    orders.click("summary", text="Quarantine")
    reasons = [one.text.splitlines() for one in orders.all("[aria-labelledby=quarantine] li")] or [
        orders.first("[aria-labelledby=quarantine] li").text.splitlines()
    ]
    assert reasons[0][1].startswith("13 records")
    assert reasons[0][2].startswith("The first: partition 0, offset ")
