"""What a broker says of itself, by JMX: the bytes of a topic that were fetched from it."""

from __future__ import annotations

import subprocess
from typing import Final

from tests.support.jars import class_path
from tests.support.java import java
from tests.support.ports import HOST

_METRIC: Final = "kafka.server:type=BrokerTopicMetrics,name=BytesOutPerSec"


def jmx_options(port: int) -> tuple[str, ...]:
    """What a JVM needs to answer on ``port`` of this machine."""
    return (
        f"-Dcom.sun.management.jmxremote.port={port}",
        f"-Dcom.sun.management.jmxremote.rmi.port={port}",
        f"-Dcom.sun.management.jmxremote.host={HOST}",
        f"-Djava.rmi.server.hostname={HOST}",
        "-Dcom.sun.management.jmxremote.authenticate=false",
        "-Dcom.sun.management.jmxremote.ssl=false",
    )


def fetched_bytes(port: int, topic: str) -> int:
    """Bytes of ``topic`` that clients have fetched from the broker whose JMX port this is, since it was started."""
    tool = ["org.apache.kafka.tools.JmxTool", "--one-time", "--attributes", "Count", "--report-format", "properties"]
    where = ["--jmx-url", f"service:jmx:rmi:///jndi/rmi://{HOST}:{port}/jmxrmi", "--object-name", f"{_METRIC},*"]
    command = [java(), "-cp", class_path("kafka-4.3.1"), *tool, *where]
    answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    counts = dict(line.rpartition("=")[::2] for line in answer.splitlines() if ":Count=" in line)
    if f"{_METRIC}:Count" not in counts:
        raise RuntimeError(f"the broker tells of no fetched bytes: {answer}")
    return int(counts.get(f"{_METRIC},topic={topic}:Count", 0))  # a topic nobody has fetched has no metric
