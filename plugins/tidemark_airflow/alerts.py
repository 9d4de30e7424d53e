"""How a person is told: any of Airflow's notifiers, named by the deployment, and always the log.

``TIDEMARK_NOTIFIER`` is the class path of an ``airflow.sdk.BaseNotifier``, ``TIDEMARK_NOTIFIER_ARGS`` its arguments as
JSON. Its templates see ``subject`` and ``text``::

    TIDEMARK_NOTIFIER=airflow.providers.amazon.aws.notifications.sns.SnsNotifier
    TIDEMARK_NOTIFIER_ARGS={"target_arn": "arn:aws:sns:…", "subject": "{{ subject }}", "message": "{{ text }}"}
"""

from __future__ import annotations

import importlib
import json
import logging
import os
from typing import TYPE_CHECKING, Any, cast

from airflow.sdk.exceptions import AirflowFailException

if TYPE_CHECKING:
    from airflow.sdk import BaseNotifier, Context

log = logging.getLogger(__name__)


class OpenGaps(AirflowFailException):
    """Offsets are missing; the message names them. A person has been told already when this is raised."""


def deliver(context: Context, subject: str, text: str) -> None:
    """Tell a person, by the log and by the deployment's notifier. Raises whatever the notifier raises."""
    log.error("%s\n%s", subject, text)
    path = os.environ.get("TIDEMARK_NOTIFIER")
    if not path:
        return
    arguments: dict[str, Any] = json.loads(os.environ.get("TIDEMARK_NOTIFIER_ARGS") or "{}")
    module, _, name = path.rpartition(".")
    notifier: BaseNotifier = getattr(importlib.import_module(module), name)(**arguments)
    notifier(cast("Context", {**context, "subject": subject, "text": text}))


def on_failure(context: Context) -> None:
    """A task failed for good: callback of all tasks. Gaps are told of by the task that finds them, once each."""
    error = context.get("exception")
    if isinstance(error, OpenGaps):
        return
    ti = context["ti"]
    subject = f"{ti.dag_id}: task {ti.task_id} failed"
    deliver(context, subject, f"run {ti.run_id}\n{type(error).__name__}: {error}\n{ti.log_url}")
