from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException

from tests.support.ports import HOST
from tests.support.receivers import SECRET, HookServer, SmtpServer, alert_env
from tests.tidemark.monitoring.test_incidents import NOW, condition
from tidemark.errors import ConfigError
from tidemark.monitoring.incidents import merge
from tidemark.monitoring.messages import due
from tidemark_airflow.notifications import notifiers
from tidemark_airflow.notifications.notifiers import news_of


@pytest.fixture
def smtp() -> Iterator[SmtpServer]:
    with SmtpServer() as server:
        yield server


@pytest.fixture
def hook() -> Iterator[HookServer]:
    with HookServer() as server:
        yield server


@pytest.fixture(autouse=True)
def both(smtp: SmtpServer, hook: HookServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are told, unless a test says otherwise."""
    for name, value in alert_env(smtp, hook).items():
        monkeypatch.setenv(name, value)


def context(error: Exception | None = None) -> Context:
    ti = SimpleNamespace(dag_id="dag", task_id="plan", run_id="run 1", log_url="http://127.0.0.1/log")
    found: dict[str, Any] = {"ti": ti, "exception": error}
    return cast("Context", found)


def news(title: str = "offsets are missing") -> notifiers.Notice:
    [message] = due(merge((), [condition(title=title)], (), NOW), "mail", NOW)
    return news_of(message)


def test_a_mail_by_the_smtp_notifier(smtp: SmtpServer) -> None:
    notifiers.send(context(), "mail", news("a <b>bold</b> topic"))

    [mail] = smtp.mails
    assert (mail["To"], mail["Subject"]) == ("oncall@example.com", "Tidemark: opened: a <b>bold</b> topic")
    assert "a &lt;b&gt;bold&lt;/b&gt; topic" in smtp.texts[0]
    assert "tidemark acknowledge-gap" in smtp.texts[0]


def test_a_web_hook_gets_the_whole_message_as_json(hook: HookServer) -> None:
    notifiers.send(context(), "hook", news())
    notifiers.send(context(), "hook", news())

    [body, again] = hook.bodies
    assert body == again, "a repetition has the same id"
    assert (body["source"], body["key"], body["status"], body["open"]) == (
        "tidemark",
        "gap/east/orders/0-0/100",
        "opened",
        1,
    )
    [one] = body["incidents"]
    assert (one["kind"], one["topic"], one["open"], one["mend"]) == ("gap", "orders", True, "tidemark acknowledge-gap")
    assert hook.requests[0]["Authorization"].startswith("Basic ")


@pytest.mark.parametrize("trouble", ["refused", "gone"])
def test_a_notifier_that_fails_is_an_error_which_names_no_secret(
    hook: HookServer, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    hook.refusing = trouble == "refused"
    if trouble == "gone":
        monkeypatch.setenv("AIRFLOW_CONN_TIDEMARK_HOOK", f'{{"conn_type": "http", "host": "http://{HOST}:1/{SECRET}"}}')

    with pytest.raises(AirflowException) as raised:
        notifiers.send(context(), "hook", news())
    assert SECRET not in str(raised.value)
    assert raised.value.__cause__ is None


def test_without_a_notifier_the_tasks_log_says_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AIRFLOW__TIDEMARK__NOTIFIERS", raising=False)
    [name] = notifiers.configured()

    notifiers.send(context(), name, news())

    assert "Tidemark: opened: offsets are missing" in caplog.text


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        pytest.param("{", "is not valid JSON", id="json"),
        pytest.param("[]", "must be a JSON object", id="list"),
        pytest.param('{"mail": {}}', "mail: must have the class path", id="class"),
        pytest.param(
            '{"mail": {"notifier": "a.B", "smtp_password": "x"}}', "mail.smtp_password: is a secret", id="secret"
        ),
    ],
)
def test_wrong_notifiers_are_named(monkeypatch: pytest.MonkeyPatch, value: str, problem: str) -> None:
    monkeypatch.setenv("AIRFLOW__TIDEMARK__NOTIFIERS", value)
    with pytest.raises(ConfigError, match=r"\[tidemark\] notifiers") as raised:
        notifiers.configured()
    assert problem in str(raised.value)


def test_a_failed_task_is_told_of_by_all_that_can(smtp: SmtpServer, hook: HookServer) -> None:
    hook.refusing = True

    notifiers.on_failure(context(ValueError("no such topic")))

    assert smtp.subjects == ["Tidemark: dag: task plan failed"]
    assert "ValueError: no such topic" in smtp.texts[0]
