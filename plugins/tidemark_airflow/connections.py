"""Airflow's connections as Tidemark's libraries use them: of AWS for the stores, of Kafka, and by name for all else.

:func:`install` only says how they are found. They are looked up when a client is made, never when a DAG file is parsed,
and again a minute later, so that what is changed or rotated counts soon.
"""

from __future__ import annotations

import threading
import time
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from tidemark import connections
from tidemark.connections import NamedConnection
from tidemark.errors import ConfigError
from tidemark.store import s3_credentials
from tidemark.store.s3_credentials import AwsAccess
from tidemark_airflow.configuration import option

if TYPE_CHECKING:
    from airflow.sdk import Connection

_LOOK_AGAIN_SECONDS: Final = 60.0


class AwsConnection:
    """Access to AWS by one Airflow connection, through the amazon provider: keys, profiles, assumed roles, endpoint.

    Credentials of an assumed role renew themselves. Threads may share it.
    """

    def __init__(self, conn_id: str) -> None:
        """Nothing is looked up yet."""
        self._conn_id = conn_id
        self._lock = threading.Lock()
        self._said = ""
        self._access: AwsAccess | None = None
        self._looked_at = 0.0

    def __call__(self) -> AwsAccess:
        """The access that counts now; a session is made again only if the connection says something else.

        Raises:
            ConfigError: there is no such connection. (The provider would use AWS's own chain.)
        """
        with self._lock:
            if self._access is None or time.monotonic() - self._looked_at >= _LOOK_AGAIN_SECONDS:
                found = _found(self._conn_id)
                said = f"{found.conn_type} {found.get_uri()}"
                if self._access is None or said != self._said:
                    self._access, self._said = _access(found), said
                self._looked_at = time.monotonic()
            return self._access


@cache
def aws_connection(conn_id: str) -> AwsConnection:
    """The one of that name, the same in all of this process."""
    return AwsConnection(conn_id)


def install() -> None:
    """Have all stores of this process use what ``[tidemark]`` names, and its registries what the topics file names."""
    conn_id = option("aws_conn_id")
    s3_credentials.use(aws_connection(conn_id) if conn_id else None)
    connections.use(named_connection)


def named_connection(conn_id: str) -> NamedConnection:
    """What the connection says. Raises ConfigError if there is none."""
    found = _found(conn_id)
    uri = found.host or None
    if uri is not None:
        uri = uri if "://" in uri else f"{found.schema or 'https'}://{uri}"
        uri = f"{uri}:{found.port}" if found.port else uri
    extra = {str(key): str(value) for key, value in found.extra_dejson.items()}
    return NamedConnection(uri=uri, login=found.login, password=found.password, extra=extra)


def kafka_client(cluster: str, bootstrap: str | None) -> dict[str, Any] | None:
    """kafka-python's settings for ``cluster``, by the connection that ``[tidemark] kafka_conn_id`` names.

    ``bootstrap`` is what the topics file says: the brokers where the connection has no host, or if there is no
    connection. None if neither says where the brokers are. Needs ``tidemark-kafka[onboarding]``.

    Raises:
        ConfigError: there is no such connection, or its extra has something else.
    """
    from tidemark.kafka_admin import checked_client

    conn_id = option("kafka_conn_id").replace("{cluster}", cluster)
    where, given = bootstrap, dict[str, Any]()
    if conn_id:
        found = _found(conn_id)
        if found.host:
            where = f"{found.host}:{found.port}" if found.port else found.host
        login = {"sasl_plain_username": found.login, "sasl_plain_password": found.password}
        given = {**found.extra_dejson, **{name: value for name, value in login.items() if value}}
    return None if where is None else checked_client(where, given, f"connection {conn_id}", f"connection {conn_id}")


def _found(conn_id: str) -> Connection:
    try:
        return BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        raise ConfigError("Airflow's connections", [(conn_id, "is named, but does not exist: create it")]) from error


def _access(connection: Connection) -> AwsAccess:
    from airflow.providers.amazon.aws.hooks.base_aws import resolve_session_factory
    from airflow.providers.amazon.aws.utils.connection_wrapper import AwsConnectionWrapper

    wrapped = AwsConnectionWrapper(conn=connection)
    session: Any = resolve_session_factory()(conn=wrapped).create_session()
    return AwsAccess(session, wrapped.get_service_endpoint_url("s3"))
