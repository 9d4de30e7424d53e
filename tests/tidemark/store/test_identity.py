"""The identity that is set down beside a name: the credentials' principal, user and host."""

from __future__ import annotations

import getpass
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tests.support.ports import HOST, free_port
from tidemark.store import StoreOptions
from tidemark.store.identity import identity

ARN = "arn:aws:sts::123456789012:assumed-role/operators/ada"
HERE = f"{getpass.getuser()}@{socket.gethostname()}"
ANSWER = f"""<GetCallerIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><GetCallerIdentityResult>
<Arn>{ARN}</Arn><UserId>x</UserId><Account>123456789012</Account></GetCallerIdentityResult></GetCallerIdentityResponse>"""


class Answering(BaseHTTPRequestHandler):
    """STS, as far as it is asked here."""

    def do_POST(self) -> None:
        """Say who asks."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(ANSWER.encode())

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def sts() -> Iterator[str]:
    with HTTPServer((HOST, 0), Answering) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://{HOST}:{server.server_port}"
        server.shutdown()


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAADA")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-shown")
    monkeypatch.setenv("AWS_REGION", "us-east-1")


def test_sts_names_the_principal(sts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", sts)
    assert identity(StoreOptions(region="us-east-1"), "s3://raw") == f"{ARN} by {HERE}"


def test_without_sts_it_is_the_public_half_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://{HOST}:{free_port()}")
    found = {
        identity(StoreOptions(region="us-east-1"), "s3://raw"),
        identity(StoreOptions(endpoint_url="http://127.0.0.1:1"), "s3://raw"),
    }
    assert found == {f"key AKIAADA by {HERE}"}


def test_a_directory_knows_user_and_host(monkeypatch: pytest.MonkeyPatch) -> None:
    assert identity(StoreOptions(), "file:///raw") == HERE
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    assert identity(StoreOptions(), "s3://raw") == HERE
