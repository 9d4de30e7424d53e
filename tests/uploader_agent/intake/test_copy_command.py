"""``tidemark-agent copy``: its errors are one message each."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.support.ports import HOST, free_port
from tests.uploader_agent.in_process import run_here
from tests.uploader_agent.intake.scripted import ID, T
from uploader_agent.intake.brokers import _FetchConnection
from uploader_agent.intake.fetching import FetchLimits, FrameTooLarge, Wanted


def answer_of(tmp_path: Path, *arguments: str, bootstrap: str = f"{HOST}:1") -> tuple[int, str]:
    log = tmp_path / "log"
    log.unlink(missing_ok=True)
    code = run_here(
        ["copy", "--bootstrap", bootstrap, "--topic", "orders", "--to", tmp_path / "spool", *arguments], log
    )
    return code, log.read_text()


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (
            "security_protocol: SASL_SSL\nsasl_mechanism: SCRAM-MD5\n",
            "sasl_mechanism: 'SCRAM-MD5' is not known; it must be",
        ),
        ("acks: all\n", "acks: is not a connection setting"),
        ("[1]", "--config: must be a mapping"),
    ],
)
def test_wrong_settings(tmp_path: Path, config: str, says: str) -> None:
    (tmp_path / "client.yaml").write_text(config)
    code, text = answer_of(tmp_path, "--config", str(tmp_path / "client.yaml"))
    assert (code, says in text) == (2, True), text


def test_wrong_arguments(tmp_path: Path) -> None:
    assert answer_of(tmp_path, bootstrap="kafka1:9092:9093")[0] == 2
    assert answer_of(tmp_path, "--largest-message", "0")[0] == 2


def test_no_broker_is_there(tmp_path: Path) -> None:
    code, text = answer_of(tmp_path, bootstrap=f"{HOST}:{free_port()}")
    assert code == 1
    assert "cannot be asked" in text
    assert "Traceback" not in text


@pytest.fixture
def wired() -> tuple[_FetchConnection, socket.socket]:
    ours, theirs = socket.socketpair()
    return _FetchConnection(ours, 1, 13, FetchLimits(1000, 500, 1000)), theirs


WANTED = Wanted(T, ID, 1, False, 7, 0, -1)


def test_a_frame_beyond_the_limit_names_partition_offset_and_remedy(
    wired: tuple[_FetchConnection, socket.socket],
) -> None:
    connection, theirs = wired
    with theirs, connection.socket:
        connection.send([WANTED], "")
        size = FetchLimits(1000, 500, 1000).frame + 1
        theirs.sendall(size.to_bytes(4, "big"))
        with pytest.raises(FrameTooLarge, match=rf"orders-0: the answer from offset 7 on has {size} bytes.*--largest"):
            connection.receive()


def test_an_answer_to_another_request_is_none(wired: tuple[_FetchConnection, socket.socket]) -> None:
    connection, theirs = wired
    with theirs, connection.socket:
        connection.send([WANTED], "")
        theirs.sendall((20).to_bytes(4, "big") + (99).to_bytes(4, "big") + bytes(16))
        with pytest.raises(ValueError, match="the broker answered 99, and request 1 was sent"):
            connection.receive()


def test_a_connection_that_ends_inside_an_answer(wired: tuple[_FetchConnection, socket.socket]) -> None:
    connection, theirs = wired
    with connection.socket:
        connection.send([WANTED], "")
        theirs.recv(10_000)
        theirs.sendall((200).to_bytes(4, "big") + bytes(50))
        theirs.close()
        with pytest.raises(ConnectionError, match="the broker closed the connection"):
            connection.receive()
