"""Who tells people: any of Airflow's notifiers, as many as the deployment names.

``[tidemark] notifiers`` is a JSON object. Each key is a name under which deliveries are recorded, each value has the
class path of an ``airflow.sdk.BaseNotifier`` as ``notifier``, and its arguments::

    {"mail": {"notifier": "airflow.providers.smtp.notifications.smtp.SmtpNotifier",
              "to": "oncall@example.com", "subject": "{{ tidemark.subject }}", "html_content": "{{ tidemark.html }}"},
     "hook": {"notifier": "tidemark_airflow.notifications.webhook.WebhookNotifier"}}

Templates see ``tidemark`` with ``subject``, ``text``, ``html``, ``key``, ``status`` and ``body``, what the web hook
sends. (Not as names of their own: Airflow puts a notifier's own fields, such as ``subject``, in the place of those.)
Secrets are in Airflow's connections, never here. Where nothing is set, the task's log is all there is.
"""

from __future__ import annotations

import html
import importlib
import json
import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from airflow.sdk import BaseNotifier

from tidemark.config import is_secret
from tidemark.errors import ConfigError
from tidemark_airflow.configuration import label, option

if TYPE_CHECKING:
    from airflow.sdk import Context

_OPTION: Final = label("notifiers")

log = logging.getLogger(__name__)


class LogNotifier(BaseNotifier):
    """Writes to the task's log; what there is where nothing else is set."""

    template_fields = ("message",)

    def __init__(self, message: str = "{{ tidemark.subject }}\n{{ tidemark.text }}") -> None:
        super().__init__()
        self.message = message

    def notify(self, context: Context) -> None:
        """Write the subject and the text to the task's log."""
        log.warning("%s", self.message)


class Notice(NamedTuple):
    """What is to be told: one line, all of it, and for programs."""

    subject: str
    text: str
    key: str
    status: str
    body: dict[str, Any]

    def for_templates(self) -> dict[str, Any]:
        """What templates see as ``tidemark``."""
        return {**self._asdict(), "html": f"<pre>{html.escape(self.text)}</pre>"}


def configured() -> dict[str, dict[str, Any]]:
    """The notifiers' settings by name.

    Raises:
        ConfigError: the option does not hold what it must, or holds a secret.
    """
    try:
        found = json.loads(option("notifiers") or "{}")
    except json.JSONDecodeError as error:
        raise ConfigError(_OPTION, [("", f"is not valid JSON: {error}")]) from None
    if not isinstance(found, dict):
        raise ConfigError(_OPTION, [("", "must be a JSON object: a name, and the settings of a notifier, each")])
    problems = [problem for name, one in found.items() for problem in _problems(name, one)]
    if problems:
        raise ConfigError(_OPTION, problems)
    return found or {"log": {"notifier": f"{LogNotifier.__module__}.{LogNotifier.__qualname__}"}}


def _problems(name: str, one: object) -> list[tuple[str, str]]:
    if not isinstance(one, dict) or not isinstance(one.get("notifier"), str) or "." not in one["notifier"]:
        return [(name, "must have the class path of an Airflow notifier as 'notifier'")]
    secret = [key for key in one if is_secret(key)]
    return [(f"{name}.{key}", "is a secret: put it into an Airflow connection") for key in secret]


def on_failure(context: Context) -> None:
    """A task failed for good: callback of tasks that no incident speaks for. Nothing relies on it.

    Airflow only logs what goes wrong in a callback, and calls none for a worker that was killed.
    """
    ti, error = context["ti"], context.get("exception")
    words = f"run {ti.run_id}\n{type(error).__name__}: {error}\n{ti.log_url}"
    tell_all(context, f"Tidemark: {ti.dag_id}: task {ti.task_id} failed", words, f"task/{ti.dag_id}/{ti.task_id}")


def tell_all(context: Context, subject: str, text: str, key: str, status: str = "opened") -> None:
    """Have every notifier tell it; one that fails is logged and keeps no other from it."""
    body = {"source": "tidemark", "key": key, "status": status, "subject": subject, "text": text}
    for name in configured():
        try:
            send(context, name, Notice(subject, text, key, status, body))
        except Exception:
            log.exception("%s did not tell: %s", name, subject)


def send(context: Context, name: str, news: Notice) -> None:
    """Have the notifier ``name`` tell it; returns once that has. Raises whatever the notifier raises."""
    arguments = dict(configured()[name])
    module, _, cls = str(arguments.pop("notifier")).rpartition(".")
    notifier: BaseNotifier = getattr(importlib.import_module(module), cls)(**arguments)
    notifier(cast("Context", {**context, "tidemark": news.for_templates()}))
