"""Airflow's connections for Tidemark's libraries: AWS's for the stores, Kafka's, and all others by name.

:func:`install` only registers the lookup. A connection is looked up when a client is made, never when a DAG file is
parsed, and again a minute later, so that changed or rotated values soon apply.
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
from tidemark.store.s3 import credentials as s3_credentials
from tidemark.store.s3.credentials import AwsAccess
from tidemark_airflow.configuration import option

if TYPE_CHECKING:
    from airflow.sdk import Connection

_LOOK_AGAIN_SECONDS: Final = 60.0


class AwsConnection:
    """Access to AWS with one Airflow connection, through the amazon provider: keys, profiles, roles, endpoint.

    Credentials of an assumed role renew themselves. Threads may share it.
    """

    def __init__(self, conn_id: str) -> None:
        """Nothing is looked up yet."""
        self._conn_id = conn_id
        self._lock = threading.Lock()
        self._content = ""
        self._access: AwsAccess | None = None
        self._looked_at = 0.0

    def __call__(self) -> AwsAccess:
        """The current access; a session is made again only if the connection has changed.

        Raises:
            ConfigError: there is no such connection. (The provider would use AWS's own chain.)
        """
        with self._lock:
            if self._access is None or time.monotonic() - self._looked_at >= _LOOK_AGAIN_SECONDS:
                connection = _found(self._conn_id)
                content = f"{connection.conn_type} {connection.get_uri()}"
                if self._access is None or content != self._content:
                    self._access, self._content = _access(connection), content
                self._looked_at = time.monotonic()
            return self._access


@cache
def aws_connection(conn_id: str) -> AwsConnection:
    """The connection with this id, one object for the whole process."""
    return AwsConnection(conn_id)


def install() -> None:
    """Have all stores and registries of this process use the connections of ``[tidemark]`` and of the topics file."""
    conn_id = option("aws_conn_id")
    s3_credentials.use(aws_connection(conn_id) if conn_id else None)
    connections.use(named_connection)


def named_connection(conn_id: str) -> NamedConnection:
    """The connection's values. Raises ConfigError if it does not exist."""
    connection = _found(conn_id)
    uri = connection.host or None
    if uri is not None:
        uri = uri if "://" in uri else f"{connection.schema or 'https'}://{uri}"
        uri = f"{uri}:{connection.port}" if connection.port else uri
    extra = {str(key): str(value) for key, value in connection.extra_dejson.items()}
    return NamedConnection(uri=uri, login=connection.login, password=connection.password, extra=extra)


def kafka_client(cluster: str, bootstrap: str | None) -> dict[str, Any] | None:
    """Settings of kafka-python for ``cluster``, from the connection in ``[tidemark] kafka_conn_id``.

    ``bootstrap`` comes from the topics file: the brokers if there is no connection, or if it has no host. None if
    neither names brokers. Needs ``tidemark-kafka[onboarding]``.

    Raises:
        ConfigError: there is no such connection, or its extra has an unknown setting.
    """
    from tidemark.kafka_admin import checked_client

    conn_id = option("kafka_conn_id").replace("{cluster}", cluster)
    where, given = bootstrap, dict[str, Any]()
    if conn_id:
        connection = _found(conn_id)
        if connection.host:
            where = f"{connection.host}:{connection.port}" if connection.port else connection.host
        login = {"sasl_plain_username": connection.login, "sasl_plain_password": connection.password}
        given = {**connection.extra_dejson, **{name: value for name, value in login.items() if value}}
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
