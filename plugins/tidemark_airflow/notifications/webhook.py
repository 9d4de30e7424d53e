"""A notifier that posts JSON to any web hook; docs/alerts.md describes the body."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, cast

from airflow.sdk import BaseHook, BaseNotifier
from airflow.sdk.exceptions import AirflowException

if TYPE_CHECKING:
    from airflow.sdk import Context

_SECONDS: Final = 10.0


class WebhookNotifier(BaseNotifier):
    """Posts ``tidemark.body`` to the URL of an Airflow connection of type ``http``.

    The connection's host is the URL, or host, schema, port and extra ``path`` form it. A login is sent with the
    password as basic authentication; extra ``headers`` are sent unchanged. URL and headers may hold secrets, so neither
    is ever part of an error.

    :param http_conn_id: the connection
    """

    template_fields = ("http_conn_id",)

    def __init__(self, http_conn_id: str = "tidemark_hook") -> None:
        super().__init__()
        self.http_conn_id = http_conn_id

    def notify(self, context: Context) -> None:
        """Post the message. Raises AirflowException: there was no answer, or its status is not 2xx."""
        import httpx

        connection = BaseHook.get_connection(self.http_conn_id)
        extra = connection.extra_dejson
        try:
            answer = httpx.post(
                _url(connection.host or "", connection.schema, connection.port, str(extra.get("path", ""))),
                content=json.dumps(_body(context)),
                headers={"Content-Type": "application/json", **extra.get("headers", {})},
                auth=(connection.login, connection.password or "") if connection.login else None,
                timeout=_SECONDS,
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise AirflowException(f"the hook of connection {self.http_conn_id!r}: {type(error).__name__}") from None
        if not answer.is_success:
            raise AirflowException(f"the hook of connection {self.http_conn_id!r} answered {answer.status_code}")


def _body(context: Context) -> dict[str, Any]:
    message = cast("dict[str, Any]", context)["tidemark"]
    return cast("dict[str, Any]", message["body"])


def _url(host: str, schema: str | None, port: int | None, path: str) -> str:
    if host.startswith(("http://", "https://")):
        return host
    at = f"{host}:{port}" if port else host
    return f"{schema or 'https'}://{at}/{path.removeprefix('/')}"
