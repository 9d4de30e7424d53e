"""The broker beside the agent, as its own files describe it: ``server.properties``, ``meta.properties``.

Source: ``java.util.Properties`` for the format, ``KafkaConfig`` and ``MetaProperties`` for the keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from tidemark.errors import ConfigError, FormatError
from tidemark.kafka_log import parse_meta_properties
from uploader_agent.disk.log_dirs import read_text, resolved
from uploader_agent.settings import PROTOCOLS

Value = TypeVar("Value", int, str)

META = "meta.properties"
_DEFAULT_LOG_DIR = "/tmp/kafka-logs"  # noqa: S108 - Kafka's own default, which is only read
_LISTENER = re.compile(r"(?P<name>[A-Za-z0-9_.-]+)://(?P<host>\[[^\]]*\]|[^:]*):(?P<port>-?\d+)")
_PLACEHOLDERS = {"", "0.0.0.0", "[::]"}  # noqa: S104 - "all interfaces" in a listener: reached by localhost


class Identity(NamedTuple):
    """The broker and cluster of a log directory, as its ``meta.properties`` has them."""

    node_id: int | None
    cluster_id: str

    def __str__(self) -> str:
        return f"node {self.node_id} of the cluster {self.cluster_id}"

    def is_of(self, broker: Identity) -> bool:
        """True if a directory with this identity is of ``broker``: its file may lack the node's id."""
        return self.cluster_id == broker.cluster_id and self.node_id in {None, broker.node_id}


class NoLogDir(ConfigError):
    """None of the ``log_dirs`` can be read: their disks are away, or the broker never started."""

    def __init__(self, path: Path, named: str, log_dirs: tuple[Path, ...], reasons: Sequence[str]) -> None:
        rule = f"no directory of {named} has a readable {META}: start the broker first, or correct the path"
        super().__init__(str(path), [("log.dirs", f"{rule} ({'; '.join(reasons)})")])
        self.log_dirs = log_dirs


@dataclass(frozen=True, slots=True)
class Broker:
    """The broker's ids and address. ``log_dirs`` are all that it names, readable or not, with links resolved."""

    node_id: int
    cluster_id: str
    log_dirs: tuple[Path, ...]
    bootstrap: str
    security_protocol: str
    mode: str
    """``kraft`` or ``zookeeper``."""
    zookeeper: Mapping[str, str | int | bool] | None = None
    """``KazooClient``'s options to reach ZooKeeper, as far as the broker's own file has them."""

    @property
    def identity(self) -> Identity:
        """The identity that its log directories have."""
        return Identity(self.node_id, self.cluster_id)


def read_broker(path: Path, bootstrap: str | None = None) -> Broker:
    """Read ``server.properties`` at ``path``, and ``meta.properties`` of each log directory that it names.

    A directory without a readable ``meta.properties`` is left out of the judgement, and so is one of another node than
    the file names, as long as another directory is of that node.

    Raises:
        ConfigError: names the file, the key and the problem; NoLogDir, if none of the directories can be read.
    """
    try:
        properties = parse_properties(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), [("", f"cannot be read: {error}")]) from error
    named = properties.get("log.dirs") or properties.get("log.dir") or _DEFAULT_LOG_DIR
    log_dirs = tuple(dict.fromkeys(resolved(part.strip()) for part in named.split(",") if part.strip()))
    found: list[Identity] = []
    reasons: list[str] = []
    for log_dir in log_dirs:
        try:
            found.append(read_identity(log_dir))
        except (OSError, FormatError) as error:
            reasons.append(str(error))
    if not found:
        raise NoLogDir(path, named, log_dirs, reasons)
    node_id = _own_id(properties)
    ours = [identity for identity in found if identity.node_id == node_id] or found
    name, address = _listener(properties, path)
    protocols = _protocols(properties, path)
    return Broker(
        node_id=_one_value(path, "node.id", [node_id, *(identity.node_id for identity in ours)]),
        cluster_id=_one_value(path, "cluster.id", [identity.cluster_id for identity in ours]),
        log_dirs=log_dirs,
        bootstrap=bootstrap or address,
        security_protocol=protocols.get(name, name),
        mode="kraft" if properties.get("process.roles") else "zookeeper",
        zookeeper=_zookeeper(properties),
    )


def parse_properties(text: str) -> dict[str, str]:
    """Parse Java properties: comments, ``=``, ``:`` or blanks after the key, continued lines; the last value counts."""
    return dict(_entries(text))


def _entries(text: str) -> Iterator[tuple[str, str]]:
    joined = re.sub(r"(?<!\\)((?:\\\\)*)\\\r?\n[ \t]*", r"\1", text)
    for line in joined.splitlines():
        stripped = line.strip()
        if stripped and stripped[0] not in "#!":
            key, _, value = re.sub(r"(?<!\\)\s*[=:\s]\s*", "\0", stripped, count=1).partition("\0")
            yield _unescaped(key), _unescaped(value)


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)


def read_identity(log_dir: Path) -> Identity:
    """The identity in the ``meta.properties`` of ``log_dir``.

    Raises:
        OSError: it is missing or cannot be read: the disk is away, or the broker has not started with it yet.
        FormatError: it is damaged.
    """
    path = log_dir / META
    properties = parse_meta_properties(read_text(path), str(path))
    return Identity(_own_id(properties), properties["cluster.id"])


def _own_id(properties: dict[str, str]) -> int | None:
    text = properties.get("node.id") or properties.get("broker.id") or "-1"
    return int(text) if text.isdecimal() else None


def _one_value(path: Path, key: str, values: Sequence[Value | None]) -> Value:
    """The value that all ``values`` except None agree on."""
    known = {value for value in values if value is not None}
    if len(known) != 1:
        rule = f"{META} and server.properties must agree, but say {sorted(map(str, known)) or 'nothing'}"
        raise ConfigError(str(path), [(key, rule)])
    return known.pop()


def _listener(properties: dict[str, str], path: Path) -> tuple[str, str]:
    """The name and host:port of the first listener for clients."""
    controllers = set(_list(properties.get("controller.listener.names", "")))
    text = properties.get("advertised.listeners") or properties.get("listeners") or "PLAINTEXT://:9092"
    for part in _list(text):
        match = _LISTENER.fullmatch(part)
        if match is None:
            raise ConfigError(str(path), [("listeners", f"{part!r} is not <name>://<host>:<port>")])
        if match["name"] not in controllers:
            host = "localhost" if match["host"] in _PLACEHOLDERS else match["host"]
            return match["name"], f"{host}:{match['port']}"
    raise ConfigError(str(path), [("listeners", "has no listener for clients, so this node is not a broker")])


def _protocols(properties: dict[str, str], path: Path) -> dict[str, str]:
    """The protocol of each listener in the map, by the listener's name."""
    protocols: dict[str, str] = {}
    for part in _list(properties.get("listener.security.protocol.map", "")):
        name, colon, protocol = part.partition(":")
        if not colon or protocol not in PROTOCOLS:
            rule = f"{part!r} is not <listener>:<protocol>, one of {', '.join(sorted(PROTOCOLS))}"
            raise ConfigError(str(path), [("listener.security.protocol.map", rule)])
        protocols[name] = protocol
    return protocols


def _zookeeper(properties: dict[str, str]) -> dict[str, str | int | bool] | None:
    """The options from ``zookeeper.connect``, with its chroot, and from ``zookeeper.ssl.*``, if stores are PEM files.

    Source: Kafka's ``ZkConfigs``; the passwords of a login are in a JAAS file that ``server.properties`` does not name.
    """
    hosts = properties.get("zookeeper.connect")
    if not hosts or properties.get("process.roles"):
        return None
    options: dict[str, str | int | bool] = {"hosts": hosts}
    if properties.get("zookeeper.ssl.client.enable", "false").lower() != "true":
        return options
    options["use_ssl"] = True
    options["check_hostname"] = bool(properties.get("zookeeper.ssl.endpoint.identification.algorithm", "HTTPS"))
    trusted, own = _pem(properties, "truststore"), _pem(properties, "keystore")
    if trusted:
        options["ca"] = trusted
    if own:
        options |= {"certfile": own, "keyfile": own}
        if password := properties.get("zookeeper.ssl.keystore.password"):
            options["keyfile_password"] = password
    return options


def _pem(properties: dict[str, str], store: str) -> str | None:
    location = properties.get(f"zookeeper.ssl.{store}.location", "")
    kind = properties.get(f"zookeeper.ssl.{store}.type", "")
    return location if kind.upper() == "PEM" or (not kind and location.endswith(".pem")) else None


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
