"""Workers of another version than the driver's: they refuse, before they unpickle anything, and name both versions."""

from __future__ import annotations

import socket

import pytest

from tests.spark.jobs.programs import Programs
from tidemark.errors import ConfigError
from tidemark.installation import VERSION
from tidemark_spark.cluster.executor import in_worker

REFUSAL = (
    f"Tidemark on {socket.gethostname()}: this worker has version {VERSION}, and the driver 0.0.1: "
    "install the driver's in its environment"
)


def test_a_worker_refuses_what_another_version_sends_unread() -> None:
    with pytest.raises(ConfigError) as error:
        in_worker("0.0.1", b"no pickle", b"neither")
    assert str(error.value) == REFUSAL


@pytest.mark.essential
def test_a_driver_is_told_of_workers_of_another_version(on_spark: Programs) -> None:
    refused = on_spark.run("tests.spark.cluster.other_version", "0.0.1")
    assert (refused.code, refused.output) == (0, f"ConfigError: {REFUSAL}")
    done = on_spark.run("tests.spark.cluster.other_version", VERSION)
    assert (done.code, done.output) == (0, "[1.5]"), done.errors
