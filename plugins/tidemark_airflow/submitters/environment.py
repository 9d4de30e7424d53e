"""The environment of Tidemark's jobs: the needed variables of this process, and none of Airflow's.

Airflow's components keep their keys in the environment (JWT, Fernet, API, database, connections). A job parses other
people's data, so it gets a list of names instead of everything except some: variables that a program needs on any
machine, the settings of Spark, Java and Hadoop, credentials of object stores, and Tidemark's own settings. ``[tidemark]
job_environment`` names further variables that a deployment's Spark needs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from tidemark.erasure.secret import VARIABLE as ERASURE_SECRET
from tidemark.errors import ConfigError
from tidemark.jobs.options import TopicsOptions
from tidemark.jobs.registry import EraseOptions
from tidemark.store.s3.credentials import STATIC_KEYS
from tidemark.store.schemes import CREDENTIALS
from tidemark_airflow.configuration import label, names, option

_NAMES = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "HOSTNAME", "LD_LIBRARY_PATH"),
        *("JAVA_HOME", "JDK_JAVA_OPTIONS", "PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"),
        *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "XDG_CACHE_HOME", "OMP_NUM_THREADS"),
    }
)
_PREFIXES = ("LC_", "SPARK_", "PYSPARK_", "HADOOP_", "YARN_", "KRB5", *CREDENTIALS, "NUMBA_", "TIDEMARK_")


_INSTEAD = frozenset({*STATIC_KEYS, "AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE"})


def job_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The whole environment of a job's process: needed variables of this process, and ``more``.

    If ``more`` has a profile, no credentials variable that would take precedence over it is inherited. The secret of
    erasure is never inherited: jobs that parse other people's data have no use for it.
    """
    named = set(names("job_environment"))
    more = dict(more or {})
    instead = _INSTEAD if "AWS_CONFIG_FILE" in more else frozenset()
    kept = {name: value for name, value in os.environ.items() if name in named or _is_needed(name)}
    return {name: value for name, value in kept.items() if name not in instead and name != ERASURE_SECRET} | more


def _is_needed(name: str) -> bool:
    return name in _NAMES or name.startswith(_PREFIXES)


def environment_of(job: TopicsOptions) -> dict[str, str]:
    """Variables for a job that deletes in raw, or erases, with a profile of its own. Raises ConfigError."""
    if isinstance(job, EraseOptions):
        return erasure_environment()
    return retention_environment() if job.deletes_raw else {}


def retention_environment() -> dict[str, str]:
    """Variables for raw retention with a profile of its own; empty if no profile is set. Raises ConfigError."""
    return {} if option("retention_aws_conn_id") else _profile("retention_profile")


def erasure_environment() -> dict[str, str]:
    """Variables for the pass of erasure: its secret, and a profile of its own if one is set. Raises ConfigError."""
    secret = os.environ.get(ERASURE_SECRET)
    return _profile("erasure_profile") | ({ERASURE_SECRET: secret} if secret else {})


def _profile(name: str) -> dict[str, str]:
    """The variable of the AWS profile in the option ``name``; empty if it is not set.

    Raises:
        ConfigError: static keys in the environment would take precedence over the profile.
    """
    profile = option(name)
    if not profile:
        return {}
    if static := [key for key in STATIC_KEYS if os.environ.get(key)]:
        rule = (
            f"names the profile {profile!r}, but {', '.join(static)} in the environment of this process would be used "
            f"instead of it: keep all keys as profiles of a credentials file (AWS_SHARED_CREDENTIALS_FILE, AWS_PROFILE)"
        )
        raise ConfigError("Airflow's configuration", [(label(name), rule)])
    return {"AWS_PROFILE": profile}
