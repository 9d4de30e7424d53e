from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest
from airflow.sdk import BaseNotifier, Context

from tidemark_airflow import alerts


class Pager(BaseNotifier):
    """A notifier like the providers'."""

    template_fields = ("message",)
    sent: ClassVar[list[str]] = []

    def __init__(self, message: str) -> None:
        super().__init__()
        self.message = message

    def notify(self, context: Context) -> None:
        assert context
        if "unreachable" in self.message:
            raise ConnectionError("no pager answers")
        self.sent.append(self.message)


@pytest.fixture
def pager(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("TIDEMARK_NOTIFIER", f"{__name__}.Pager")
    monkeypatch.setenv("TIDEMARK_NOTIFIER_ARGS", json.dumps({"message": "{{ subject }}: {{ text }}"}))
    Pager.sent.clear()
    return Pager.sent


def context(error: Exception | None = None) -> Context:
    ti = SimpleNamespace(dag_id="dag", task_id="plan", run_id="run 1", log_url="http://127.0.0.1/log")
    found: dict[str, Any] = {"ti": ti, "exception": error}
    return cast("Context", found)


def test_without_a_notifier_the_log_says_it(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIDEMARK_NOTIFIER", raising=False)

    alerts.deliver(context(), "orders: 1 gaps", "orders-0: offsets 1 to 2")

    [record] = [one for one in caplog.records if one.name == alerts.__name__]
    assert record.levelname == "ERROR"
    assert "orders-0: offsets 1 to 2" in record.getMessage()


def test_the_deployments_notifier_gets_subject_and_text(pager: list[str]) -> None:
    alerts.deliver(context(), "orders: 1 gaps", "orders-0: offsets 1 to 2")

    assert pager == ["orders: 1 gaps: orders-0: offsets 1 to 2"]


@pytest.mark.usefixtures("pager")
def test_a_notifier_that_fails_is_an_error() -> None:
    with pytest.raises(ConnectionError):
        alerts.deliver(context(), "unreachable", "text")


def test_a_failed_task_is_told_of_with_its_error_and_log(pager: list[str]) -> None:
    alerts.on_failure(context(ValueError("no such topic")))

    [message] = pager
    assert message.startswith("dag: task plan failed: run run 1")
    assert "ValueError: no such topic" in message
    assert "http://127.0.0.1/log" in message


def test_gaps_are_not_told_of_twice(pager: list[str]) -> None:
    alerts.on_failure(context(alerts.OpenGaps("orders-0")))

    assert pager == []
