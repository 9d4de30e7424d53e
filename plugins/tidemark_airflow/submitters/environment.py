"""The environment of Tidemark's jobs: the needed variables of this process, and none of Airflow's.

Airflow's components keep their keys in the environment (JWT, Fernet, API, database, connections). A job parses other
people's data, so it gets a list of names instead of everything except some: variables that a program needs on any
machine, the settings of Spark, Java and Hadoop, credentials of object stores, and Tidemark's own settings. ``[tidemark]
job_environment`` names further variables that a deployment's Spark needs.

Airflow's connections reach a job as files for this user alone, in a folder that is removed with the task. No secret is
in an argument, in a log or in the environment, which has only paths. AWS keys reach the job through a profile whose
``credential_process`` prints a file. So botocore renews them by itself: a thread of the task keeps the file as new as
the provider's session, for as long as the job runs. Processes on the driver's machine, such as the workers of
``local[*]``, inherit the variables and read the same files.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psutil

from tidemark import connections
from tidemark.connections import NamedConnection
from tidemark.erasure.secret import VARIABLE as ERASURE_SECRET
from tidemark.errors import ConfigError
from tidemark.jobs.options import TopicsOptions
from tidemark.jobs.registry import EraseOptions
from tidemark.store.s3.credentials import STATIC_KEYS, AccessSource
from tidemark.store.schemes import CREDENTIALS
from tidemark_airflow.configuration import label, names, option

log = logging.getLogger(__name__)

_NAMES = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "HOSTNAME", "LD_LIBRARY_PATH"),
        *("JAVA_HOME", "JDK_JAVA_OPTIONS", "PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"),
        *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "XDG_CACHE_HOME", "OMP_NUM_THREADS"),
    }
)
_PREFIXES = ("LC_", "SPARK_", "PYSPARK_", "HADOOP_", "YARN_", "KRB5", *CREDENTIALS, "NUMBA_", "TIDEMARK_")
_PREFIX: Final = "tidemark-job-"
_PROFILE: Final = "tidemark-connection"
_RENEW_SECONDS: Final = 60.0


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
    """Variables for a job that deletes in raw, or erases: a profile of its own, and erasure's secret.

    Raises:
        ConfigError: static keys in the environment would take precedence over the profile.
    """
    if isinstance(job, EraseOptions):
        secret = os.environ.get(ERASURE_SECRET)
        return _own_profile("erasure_profile") | ({ERASURE_SECRET: secret} if secret else {})
    return _own_profile("retention_profile") if job.deletes_raw and not option("retention_aws_conn_id") else {}


def _own_profile(name: str) -> dict[str, str]:
    """The variable of the AWS profile in the option ``name``; empty if it is not set."""
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


@contextmanager
def handed_over(aws: AccessSource | None, named: Mapping[str, NamedConnection]) -> Iterator[dict[str, str]]:
    """The variables that lead a job to ``aws`` and ``named``, while the context lasts; empty without either.

    Raises:
        ConfigError: there is no such connection.
    """
    if aws is None and not named:
        yield {}
        return
    _sweep()
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))  # mode 0700
    ended, writing = threading.Event(), threading.Lock()
    try:
        given: dict[str, str] = {}
        if named:
            _write(path := folder / "connections.json", connections.dumped(named))
            given[connections.VARIABLE] = str(path)
        if aws is not None:
            keys = folder / "keys.json"
            given |= _profile(folder, keys, aws)
            threading.Thread(target=_keep, args=(aws, keys, ended, writing), name="handover", daemon=True).start()
        yield given
    finally:
        with writing:  # a file that is written while the folder is removed would stay
            ended.set()
        shutil.rmtree(folder, ignore_errors=True)


def _profile(folder: Path, keys: Path, aws: AccessSource) -> dict[str, str]:
    access = aws()
    _write(keys, _keys(aws))
    config = folder / "config"
    lines = [f"[profile {_PROFILE}]", f"credential_process = cat {shlex.quote(str(keys))}"]
    if access.session.region_name:
        lines.append(f"region = {access.session.region_name}")
    _write(config, "\n".join([*lines, ""]).encode())
    given = {
        "AWS_CONFIG_FILE": str(config),
        "AWS_PROFILE": _PROFILE,
        # A profile with this name there would take precedence.
        "AWS_SHARED_CREDENTIALS_FILE": str(folder / "none"),
    }
    if access.endpoint_url:
        given["TIDEMARK__STORE__ENDPOINT_URL"] = json.dumps(access.endpoint_url)
    return given


def _keep(aws: AccessSource, keys: Path, ended: threading.Event, writing: threading.Lock) -> None:
    """Write the keys again whenever they have changed."""
    written = keys.read_bytes()
    while not ended.wait(_RENEW_SECONDS):
        try:
            current = _keys(aws)
            with writing:
                if current != written and not ended.is_set():
                    _write(keys, current)
                    written = current
        except Exception:
            # The job has the last keys, which are valid for a while; the provider may raise anything.
            log.exception("the credentials of the job were not renewed; tried again in %.0f s", _RENEW_SECONDS)


def _keys(aws: AccessSource) -> bytes:
    """The keys in the format that ``credential_process`` prints."""
    credentials: Any = aws().session.get_credentials()
    if credentials is None:
        rule = "has no credentials, and AWS's own chain finds none either: give it keys, a profile or a role"
        raise ConfigError("Airflow's connections", [("of AWS", rule)])
    keys = credentials.get_frozen_credentials()
    fields = {"Version": 1, "AccessKeyId": keys.access_key, "SecretAccessKey": keys.secret_key}
    if keys.token:
        fields["SessionToken"] = keys.token
    # botocore has no public name for it; the tests notice if this attribute is removed.
    if (expiry := getattr(credentials, "_expiry_time", None)) is not None:
        fields["Expiration"] = expiry.isoformat()
    return json.dumps(fields).encode()


def _write(path: Path, content: bytes) -> None:
    """Replace ``path`` as a whole, readable by this user alone."""
    partial = path.with_suffix(".part")
    partial.touch(0o600)
    partial.write_bytes(content)
    partial.replace(path)


def _sweep() -> None:
    """Remove the folders of killed tasks."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        owner = re.fullmatch(rf"{_PREFIX}(\d+)-\w+", path.name)
        if owner and path.lstat().st_uid == os.getuid() and not psutil.pid_exists(int(owner[1])):
            shutil.rmtree(path, ignore_errors=True)
