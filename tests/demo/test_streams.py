"""The demo's producers say nothing that looks like an error to who runs the demo first."""

from __future__ import annotations

from pathlib import Path

import pytest

from demo.streams import Production
from tests.support.ports import HOST, free_port
from tests.support.waiting import wait_until


def test_what_librdkafka_tells_goes_to_a_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "producers.log"
    production = Production(f"{HOST}:{free_port()}", 1, 1, log)
    producer = production._producer()

    def told() -> bool:
        producer.poll(0.1)
        return log.exists() and "Connection refused" in log.read_text()

    wait_until(told, what="librdkafka to say that nobody listens")
    for handler in production._log.handlers:
        handler.close()
    assert capfd.readouterr() == ("", "")
