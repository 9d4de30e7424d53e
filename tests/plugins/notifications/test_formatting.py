from __future__ import annotations

from typing import Any

import pytest

from tests.tidemark.monitoring.test_incidents import NOW, condition
from tidemark.monitoring.incidents import Condition, merge
from tidemark.monitoring.messages import due
from tidemark_airflow.notifications.notifiers import news_of

AIRFLOW = "http://airflow.example.com"


@pytest.fixture(autouse=True)
def base(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", AIRFLOW)


def bodies(*conditions: Condition) -> list[dict[str, Any]]:
    return [news_of(one).body for one in due(merge((), conditions, (), NOW), "hook", NOW)]


@pytest.mark.parametrize(
    ("found", "link"),
    [
        pytest.param(condition(partition=7), "/tidemark/?topic=east/orders&partition=7", id="gap"),
        pytest.param(
            condition("quarantine/east/orders", kind="quarantine"),
            "/tidemark/?topic=east/orders&backfill=1&mode=replay",
            id="quarantine",
        ),
        pytest.param(
            condition("audit/east/orders/2026-11-19", kind="audit"),
            "/tidemark/?topic=east/orders&backfill=1&from_date=2026-11-19&to_date=2026-11-19&mode=rebuild",
            id="audit",
        ),
        pytest.param(condition("agent_gone/east/3", kind="agent_gone", topic=None), "/tidemark/", id="no topic"),
    ],
)
def test_the_link_leads_to_where_it_is_mended(found: Condition, link: str) -> None:
    [body] = bodies(found)
    assert body["link"] == AIRFLOW + link
    assert body["text"].endswith(body["link"])


def test_a_group_leads_to_its_topic_or_to_all() -> None:
    [body] = bodies(*(condition(f"gap/{number}") for number in range(200)))
    assert (body["link"], len(body["incidents"]), body["more"], body["open"]) == (
        f"{AIRFLOW}/tidemark/?topic=east/orders",
        100,
        100,
        200,
    )
    [body] = bodies(*(condition(f"late/{number}", kind="late", topic=f"topic-{number}") for number in range(20)))
    assert (body["key"], body["link"]) == ("late/east", f"{AIRFLOW}/tidemark/")


def test_the_id_is_another_for_other_news() -> None:
    one, two = (bodies(condition(key))[0]["id"] for key in ("gap/1", "gap/2"))
    assert one != two
    assert one == bodies(condition("gap/1"))[0]["id"]
