"""Servers that people's alerts end at: an SMTP server and a web hook, each on a free port of this machine.

Both keep what they accept, in order, and can be told to refuse: then a client gets a real refusal.
"""

from __future__ import annotations

import email
import email.policy
import json
import threading
from collections.abc import Callable
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Any, Self

from tests.support.ports import HOST

SECRET = "T0P-S3CRET"
"""The web hook's password; it must show up nowhere."""

NOTIFIERS: dict[str, dict[str, str]] = {
    "hook": {"notifier": "tidemark_airflow.notifications.webhook.WebhookNotifier", "http_conn_id": "tidemark_hook"},
    "mail": {
        "notifier": "airflow.providers.smtp.notifications.smtp.SmtpNotifier",
        "from_email": "tidemark@example.com",
        "to": "oncall@example.com",
        "subject": "{{ tidemark.subject }}",
        "html_content": "{{ tidemark.html }}",
    },
}
"""What ``[tidemark] notifiers`` holds where both are told."""


def alert_env(smtp: SmtpServer, hook: HookServer) -> dict[str, str]:
    """What Airflow needs in its environment to tell both."""
    extra = {"disable_ssl": True, "disable_tls": True, "retry_limit": 1}
    mail = {"conn_type": "smtp", "host": HOST, "port": smtp.port, "extra": extra}
    web = {"conn_type": "http", "host": hook.url, "login": "tidemark", "password": SECRET}
    return {
        "AIRFLOW__TIDEMARK__NOTIFIERS": json.dumps(NOTIFIERS),
        "AIRFLOW_CONN_SMTP_DEFAULT": json.dumps(mail),
        "AIRFLOW_CONN_TIDEMARK_HOOK": json.dumps(web),
    }


class Serving:
    """A server in a thread, until the ``with`` ends."""

    server: ThreadingTCPServer | ThreadingHTTPServer

    def __init__(self) -> None:
        self.refusing = False

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.server.server_address[1])

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


class SmtpServer(Serving):
    """Accepts mail by SMTP (RFC 5321), without TLS and without authentication."""

    def __init__(self) -> None:
        super().__init__()
        self.mails: list[EmailMessage] = []
        self.server = ThreadingTCPServer((HOST, 0), _smtp_session(self))
        self.server.daemon_threads = True

    def take(self, body: bytes) -> None:
        """A mail was accepted."""
        self.mails.append(email.message_from_bytes(body, policy=email.policy.default))

    @property
    def texts(self) -> list[str]:
        """The bodies of all mails, decoded."""
        bodies = (one.get_body(("html", "plain")) for one in self.mails)
        return [str(one.get_content()) for one in bodies if one is not None]

    @property
    def subjects(self) -> list[str]:
        """The subjects of all mails."""
        return [str(one["Subject"]) for one in self.mails]


def _smtp_session(server: SmtpServer) -> type[StreamRequestHandler]:
    class Session(StreamRequestHandler):
        def handle(self) -> None:
            self._say("220 tests ESMTP")
            while line := self.rfile.readline():
                verb = line.split(b" ")[0].strip().upper()
                if verb == b"QUIT":
                    self._say("221 bye")
                    return
                if verb == b"DATA":
                    self._data()
                elif verb in {b"EHLO", b"HELO", b"MAIL", b"RCPT", b"RSET", b"NOOP"}:
                    self._say("451 try later" if verb == b"MAIL" and server.refusing else "250 ok")
                else:
                    self._say("502 not implemented")

        def _data(self) -> None:
            self._say("354 go ahead")
            lines = []
            while (line := self.rfile.readline()) not in {b".\r\n", b""}:
                lines.append(line.removeprefix(b"."))
            server.take(b"".join(lines))
            self._say("250 accepted")

        def _say(self, answer: str) -> None:
            self.wfile.write(f"{answer}\r\n".encode())

    return Session


class HookServer(Serving):
    """Accepts JSON by POST; ``before_answer`` is called once a body is kept and nobody has heard of it yet."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies: list[dict[str, Any]] = []
        self.requests: list[dict[str, str]] = []
        self.before_answer: Callable[[], None] = lambda: None
        self.server = ThreadingHTTPServer((HOST, 0), _hook_handler(self))

    @property
    def url(self) -> str:
        """Where to post to."""
        return f"http://{HOST}:{self.port}/hook"

    @property
    def told(self) -> list[tuple[str, str]]:
        """(key, status) of all that was accepted."""
        return [(str(one["key"]), str(one["status"])) for one in self.bodies]


def _hook_handler(server: HookServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if server.refusing:
                self.send_error(503)
                return
            server.requests.append({"path": self.path, **dict(self.headers)})
            server.bodies.append(json.loads(body))
            server.before_answer()
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Tests show what they need themselves."""

    return Handler
