"""Notifies people with Airflow's notifiers, as many as the deployment names.

``[tidemark] notifiers`` is a JSON object. Each key is a name under which deliveries are recorded, each value has the
class path of an ``airflow.sdk.BaseNotifier`` as ``notifier``, and its arguments::

    {"mail": {"notifier": "airflow.providers.smtp.notifications.smtp.SmtpNotifier",
              "to": "oncall@example.com", "subject": "{{ tidemark.subject }}", "html_content": "{{ tidemark.html }}"},
     "hook": {"notifier": "tidemark_airflow.notifications.webhook.WebhookNotifier"}}

Templates see ``tidemark`` with ``subject``, ``text``, ``html``, ``key``, ``status`` and the web hook's ``body``. (They
are not top-level names, as Airflow would replace them with a notifier's own fields, such as ``subject``.) Secrets are
in Airflow's connections, never here. Without notifiers, messages are only in the task's log.
"""

from __future__ import annotations

import hashlib
import html
import importlib
import json
import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from airflow.sdk import BaseNotifier

from tidemark.config import is_secret
from tidemark.errors import ConfigError
from tidemark_airflow.configuration import label, option
from tidemark_airflow.links import urls

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tidemark.monitoring.incidents import Incident
    from tidemark.monitoring.messages import Message

_OPTION: Final = label("notifiers")

_MOST_LISTED: Final = 100
_SHOWN: Final = {
    *("key", "kind", "cluster", "topic", "partition", "start", "end", "offsets", "since", "closed_at"),
    *("title", "text", "likely", "mend"),
}

log = logging.getLogger(__name__)


class LogNotifier(BaseNotifier):
    """Writes to the task's log; the default notifier."""

    template_fields = ("message",)

    def __init__(self, message: str = "{{ tidemark.subject }}\n{{ tidemark.text }}") -> None:
        super().__init__()
        self.message = message

    def notify(self, context: Context) -> None:
        """Write the subject and the text to the task's log."""
        log.warning("%s", self.message)


class Notice(NamedTuple):
    """A message: one line, the whole text, and fields for programs."""

    subject: str
    text: str
    key: str
    status: str
    body: dict[str, Any]

    def for_templates(self) -> dict[str, Any]:
        """The value of ``tidemark`` in templates."""
        return {**self._asdict(), "html": f"<pre>{html.escape(self.text)}</pre>"}


def configured() -> dict[str, dict[str, Any]]:
    """The notifiers' settings by name.

    Raises:
        ConfigError: the option does not hold such settings, or holds a secret.
    """
    try:
        notifiers = json.loads(option("notifiers") or "{}")
    except json.JSONDecodeError as error:
        raise ConfigError(_OPTION, [("", f"is not valid JSON: {error}")]) from None
    if not isinstance(notifiers, dict):
        raise ConfigError(_OPTION, [("", "must be a JSON object: a name, and the settings of a notifier, each")])
    problems = [problem for name, settings in notifiers.items() for problem in _problems(name, settings)]
    if problems:
        raise ConfigError(_OPTION, problems)
    return notifiers or {"log": {"notifier": f"{LogNotifier.__module__}.{LogNotifier.__qualname__}"}}


def _problems(name: str, settings: object) -> list[tuple[str, str]]:
    if (
        not isinstance(settings, dict)
        or not isinstance(settings.get("notifier"), str)
        or "." not in settings["notifier"]
    ):
        return [(name, "must have the class path of an Airflow notifier as 'notifier'")]
    secret = [key for key in settings if is_secret(key)]
    return [(f"{name}.{key}", "is a secret: put it into an Airflow connection") for key in secret]


def on_failure(context: Context) -> None:
    """Notify that a task failed for good: the callback of tasks that open no incident.

    Nothing relies on it. Airflow only logs errors of a callback, and calls none for a killed worker.
    """
    ti, error = context["ti"], context.get("exception")
    words = f"run {ti.run_id}\n{type(error).__name__}: {error}\n{ti.log_url}"
    tell_all(context, f"Tidemark: {ti.dag_id}: task {ti.task_id} failed", words, f"task/{ti.dag_id}/{ti.task_id}")


def tell_all(context: Context, subject: str, text: str, key: str, status: str = "opened") -> None:
    """Have every notifier send the message; an error of a notifier is logged and does not stop the others."""
    body = {"source": "tidemark", "key": key, "status": status, "subject": subject, "text": text}
    for name in configured():
        try:
            send(context, name, Notice(subject, text, key, status, body))
        except Exception:
            log.exception("%s did not tell: %s", name, subject)


def send(context: Context, name: str, news: Notice) -> None:
    """Have the notifier ``name`` send the message, and wait for it. Raises any error of the notifier."""
    arguments = dict(configured()[name])
    module, _, cls = str(arguments.pop("notifier")).rpartition(".")
    notifier: BaseNotifier = getattr(importlib.import_module(module), cls)(**arguments)
    notifier(cast("Context", {**context, "tidemark": news.for_templates()}))


def news_of(message: Message) -> Notice:
    """The notice that notifiers send for ``message``: subject, text, and fields for programs."""
    from tidemark.monitoring.messages import subject, text

    link = link_of(message)
    words = text(message, [link] if link else [])
    first = message.incidents[0]
    body: dict[str, Any] = {
        "source": "tidemark",
        "id": _id(message),
        "key": message.key,
        "status": message.status,
        "kind": first.kind,
        "cluster": first.cluster,
        "open": message.open,
        "subject": subject(message),
        "text": words,
        "link": link,
        "incidents": [_dumped(incident) for incident in message.incidents[:_MOST_LISTED]],
        "more": max(0, len(message.incidents) - _MOST_LISTED),
    }
    return Notice(subject(message), words, message.key, message.status, body)


def link_of(message: Message) -> str:
    """The link of a message: the filled-in backfill form, the topic's continuity page, or the page of all topics."""
    from tidemark.monitoring.incidents import page_of

    if not urls.base_url():
        return ""
    first = message.incidents[0]
    topics = {(incident.cluster, incident.topic) for incident in message.incidents}
    if len(topics) > 1 or first.topic is None:
        return f"{urls.base_url()}{urls.PREFIX}/"
    if message.group:
        return urls.continuity_url(first.cluster, first.topic)
    page, date = page_of(first.kind), first.key.rpartition("/")[2]
    if page == "replay":
        return urls.backfill_url(first.cluster, first.topic, mode=page)
    if page == "rebuild" and date:
        return urls.backfill_url(first.cluster, first.topic, date, date, mode=page)
    return urls.continuity_url(first.cluster, first.topic, first.partition)


def _dumped(incident: Incident) -> dict[str, Any]:
    return {**incident.model_dump(mode="json", include=_SHOWN), "open": incident.open}


def _id(message: Message) -> str:
    """An id of the message's content, by which a receiver recognizes a repetition."""
    lines = [f"{incident.key} {incident.opened_at} {incident.revision}" for incident in message.incidents]
    return hashlib.sha256("\n".join([message.key, *lines]).encode()).hexdigest()[:16]
