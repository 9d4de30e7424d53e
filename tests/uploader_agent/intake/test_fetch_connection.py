"""A connection that fetches: what is wrong with it is told, and nothing of it is waited for without end."""

from __future__ import annotations

import re
import select
import selectors
import signal
import socket
import threading
import time
from pathlib import Path

import pytest
from kafka.protocol.consumer import FetchResponse

from tests.uploader_agent.in_process import run_here
from tests.uploader_agent.intake.scripted import ID, T
from tidemark.errors import ConfigError
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.incarnations import topic_id_uuid
from uploader_agent import cli
from uploader_agent.intake.brokers import check_security
from uploader_agent.intake.fetch_connection import FetchConnection, FetchSession
from uploader_agent.intake.fetching import FetchLimits, FrameTooLarge, Wanted


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"security_protocol": "SASL_SSL", "sasl_mechanism": "SCRAM-MD5"},
            "sasl_mechanism: 'SCRAM-MD5' is not known; it must be",
        ),
        ({"security_protocol": "SSL", "ssl_cafile": "/no.pem"}, "ssl_cafile: /no.pem cannot be read: No such file"),
        ({"security_protocol": "SSL", "ssl_cafile": "/dev/null"}, "ssl_cafile: /dev/null must have authorities'"),
    ],
)
def test_wrong_settings(settings: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        check_security(settings)


def test_its_answers_to_signals_end_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else nobody could end the tests that come after it in the same process."""
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(cli, "main", lambda *_: signal.signal(signal.SIGTERM, lambda *_: None))
    assert run_here(["status"], tmp_path / "log") == 0
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.fixture
def wired() -> tuple[FetchConnection, socket.socket]:
    ours, theirs = socket.socketpair()
    return FetchConnection(ours, 1, 13, FetchLimits(1000, 500, 1000), FetchSession()), theirs


def awaited(connection: FetchConnection) -> None:
    """Wait for an answer."""
    while connection.receive() is None:
        select.select([connection.socket], [], [])


WANTED = Wanted(T, ID, 1, False, 7, 0, -1)


def test_a_frame_beyond_the_limit_names_partition_offset_and_remedy(
    wired: tuple[FetchConnection, socket.socket],
) -> None:
    """Its first batch is that of the first partition that has one."""
    connection, theirs = wired
    parts = [
        FetchResponse.FetchableTopicResponse.PartitionData(
            partition_index=number, error_code=0, high_watermark=9, records=bytes(size)
        )
        for number, size in ((1, 0), (0, 1 << 21))
    ]
    topic = FetchResponse.FetchableTopicResponse(topic_id=topic_id_uuid(ID), partitions=parts)
    answer = FetchResponse(version=13, throttle_time_ms=0, error_code=0, session_id=5, responses=[topic])
    answer.with_header(correlation_id=1)
    with theirs, connection.socket:
        connection.send([WANTED._replace(tp=TopicPartition("orders", 1), offset=3), WANTED], "")
        frame = answer.encode(framed=True, header=True)
        sender = threading.Thread(target=theirs.sendall, args=(frame,))
        sender.start()
        says = rf"orders-0: the answer from offset 7 on has {len(frame) - 4} bytes.*fetch.largest_message"
        with pytest.raises(FrameTooLarge, match=says):
            awaited(connection)
        sender.join()


def test_an_answer_to_another_request_is_none(wired: tuple[FetchConnection, socket.socket]) -> None:
    connection, theirs = wired
    with theirs, connection.socket:
        connection.send([WANTED], "")
        theirs.sendall((20).to_bytes(4, "big") + (99).to_bytes(4, "big") + bytes(16))
        with pytest.raises(ValueError, match="the broker answered 99, and request 1 was sent"):
            connection.receive()


def test_a_connection_that_ends_inside_an_answer(wired: tuple[FetchConnection, socket.socket]) -> None:
    connection, theirs = wired
    with connection.socket:
        connection.send([WANTED], "")
        assert connection.receive() is None
        theirs.recv(10_000)
        theirs.sendall((200).to_bytes(4, "big") + bytes(50))
        theirs.close()
        with pytest.raises(ConnectionError, match="the broker closed the connection"):
            connection.receive()


def test_a_broker_that_stands_still_amid_a_request_or_an_answer_is_not_waited_for(
    wired: tuple[FetchConnection, socket.socket],
) -> None:
    connection, theirs = wired
    many = [WANTED._replace(tp=TopicPartition("orders", number)) for number in range(30_000)]
    with theirs, connection.socket:
        connection.send(many, "")
        assert connection.receive() is None
        assert connection.events & selectors.EVENT_WRITE, "the broker reads no more of the request"
        while connection.events & selectors.EVENT_WRITE:
            theirs.recv(1 << 20)
            assert connection.receive() is None
        theirs.sendall((200).to_bytes(4, "big") + bytes(50))
        assert connection.receive() is None
        now = time.monotonic()
        assert (connection.is_late(now), connection.is_late(now + 31)) == (False, True)
