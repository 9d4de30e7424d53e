"""The request that starts a job on a platform: a file of the deployment, completed with the job.

The file has the deployment's choices (application, role, image, cluster, sizes), in the platform's own words. Tidemark
sets the program, its arguments and its name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from tidemark.errors import ConfigError
from tidemark_airflow.configuration import label, option

_SOURCE: Final = "Airflow's configuration"
_SECRET: Final = re.compile("(?i)secret|password|token|access[.]?key")
"""Names of values that Spark itself hides on its pages (spark.redaction.regex)."""


def request_of(*required: str) -> dict[str, Any]:
    """The content of the file in ``[tidemark] job_template``; it must have the keys ``required``.

    Raises:
        ConfigError: no file is set, or it is not such a mapping.
    """
    path = option("job_template")
    if not path:
        rule = "must name a file with the platform's request, see docs/spark.md"
        raise ConfigError(_SOURCE, [(label("job_template"), rule)])
    try:
        request = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(path, [("", f"cannot be read as YAML: {error}")]) from error
    if not isinstance(request, dict):
        raise ConfigError(path, [("", "must be a mapping of keys to values")])
    if missing := [(name, "is required") for name in required if name not in request]:
        raise ConfigError(path, missing)
    return request


def spark_settings() -> dict[str, str]:
    """The content of a template with Spark's settings. They are put on a command line, so none may hold a secret.

    Raises:
        ConfigError: see :func:`request_of`; or a setting is not Spark's, or Spark treats it as a secret.
    """
    template = request_of()
    wrong = [(str(name), rule) for name, value in template.items() if (rule := _wrong(str(name), value))]
    if wrong:
        raise ConfigError(option("job_template"), wrong)
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in template.items()}


def _wrong(name: str, value: object) -> str:
    if not name.startswith("spark."):
        return "is not a setting of Spark: its name must begin with spark."
    if _SECRET.search(name):
        return "would be on a command line, where others see it: let the nodes have it, see docs/airflow.md"
    return "must be one text or number" if not isinstance(value, str | int | float | bool) else ""


def mapping(request: dict[str, Any], *names: str) -> dict[str, Any]:
    """The mapping below ``names``, created if it is missing. Raises ConfigError if another value is there."""
    for name in names:
        request = request.setdefault(name, {})
        if not isinstance(request, dict):
            raise ConfigError(option("job_template"), [(".".join(names), "must be a mapping of keys to values")])
    return request


def program_url(program: str) -> str:
    """The platform's address of the program. Raises ConfigError if no option sets it."""
    folder = option("remote_jobs")
    if not folder:
        rule = "must name the folder of Spark's jobs as the platform reaches it, such as s3://bucket/jobs"
        raise ConfigError(_SOURCE, [(label("remote_jobs"), rule)])
    return f"{folder.rstrip('/')}/{program}"


def remote_arguments(arguments: Sequence[str]) -> list[str]:
    """``arguments`` with the platform's path of the topics file."""
    path = option("remote_topics")
    if not path:
        rule = "must be the path of the topics file where the job runs"
        raise ConfigError(_SOURCE, [(label("remote_topics"), rule)])
    remote = list(arguments)
    remote[remote.index("--topics") + 1] = path
    return remote
