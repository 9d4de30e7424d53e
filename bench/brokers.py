"""What a broker says of itself, by JMX: the bytes of a topic that were fetched from it."""

from __future__ import annotations

from typing import Any, Final

from py4j.java_gateway import JavaGateway

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
    opened = "--add-opens=java.management.rmi/javax.management.remote.rmi=ALL-UNNAMED"
    gateway: Any = JavaGateway.launch_gateway(javaopts=[opened], java_path=str(java()), die_on_exit=True)
    try:
        remote = gateway.jvm.javax.management.remote
        url = remote.JMXServiceURL(f"service:jmx:rmi:///jndi/rmi://{HOST}:{port}/jmxrmi")
        server = remote.JMXConnectorFactory.connect(url).getMBeanServerConnection()
        name = gateway.jvm.javax.management.ObjectName(f"{_METRIC},topic={topic}")
        return int(server.getAttribute(name, "Count")) if server.isRegistered(name) else 0  # none before the first
    finally:
        process = gateway.java_process
        gateway.shutdown()
        process.stdin.close()
        process.wait(30)
