"""The broker beside the agent, as its own files ``server.properties`` and ``meta.properties`` describe it.

:func:`read_broker` reads them once, and :class:`BrokerDirs` follows the log directories that they name.

Source: ``java.util.Properties`` for the format, ``KafkaConfig`` and ``MetaProperties`` for the keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

import structlog
from typing_extensions import override

from tidemark.errors import ConfigError, FormatError, TidemarkError
from tidemark.kafka_log import parse_meta_properties
from uploader_agent.disk.locks import AlreadyRunning, DirectoryLocks
from uploader_agent.disk.log_dirs import LogDirs, read_text, resolved
from uploader_agent.settings import PROTOCOLS

logger = structlog.get_logger(__name__)

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


class BrokerDirs(LogDirs):
    """The log directories that ``server.properties`` names now, locked. ``broker`` was read with the same arguments.

    Each of them stays known while it is named, whether it answers or not. One that answers has a ``meta.properties`` of
    this broker: a disk that is not mounted leaves an empty directory, and one from elsewhere holds other logs.

    The file may change before the broker is restarted with it. So a directory that it no longer names is still followed
    while it answers as this broker's. If all that it names are of another broker or cluster, the broker was replaced.
    """

    def __init__(
        self, path: Path, broker: Broker, bootstrap: str | None = None, locks: DirectoryLocks | None = None
    ) -> None:
        """Without ``locks``, for commands that may run beside an agent, nothing is locked.

        Raises:
            AlreadyRunning: another agent has locked one of the directories.
        """
        super().__init__(broker.log_dirs)
        self.broker = broker
        """The broker as its file describes it now; another broker's file is not taken."""
        self._path = path
        self._bootstrap = bootstrap
        self._identity = broker.identity
        self._locks = locks
        for log_dir in self.named:
            try:
                self.check(log_dir)
            except AlreadyRunning:
                raise
            except (OSError, FormatError) as error:
                logger.debug("log_dir_not_locked", folder=str(log_dir), error=str(error))  # the next look tries again

    @override
    def follow(self) -> None:
        try:
            now = read_broker(self._path, self._bootstrap)
        except NoLogDir as error:
            self._follow(error.log_dirs)
            self.problem = self.replaced = None
            return
        except ConfigError as error:
            rule = f"the broker's configuration cannot be followed, and an agent would not start with it: {error}"
            self.problem = self._path, rule
            return
        self.problem = None
        self._follow(now.log_dirs)
        if now.identity == self._identity:
            self.broker, self.replaced = now, None
        elif not any(self._is_ours(log_dir) for log_dir in now.log_dirs):
            self.replaced = f"{self._path}: the broker is now {now.identity}, and was {self._identity}"

    @override
    def check(self, log_dir: Path) -> None:
        try:
            self._check_identity(log_dir)
            if self._locks is not None:
                self._locks.take(log_dir)
        except (OSError, TidemarkError):
            if self._locks is not None:
                self._locks.release(log_dir)
            raise

    def _check_identity(self, log_dir: Path) -> None:
        found = read_identity(log_dir)
        if not found.is_of(self._identity):
            rule = f"is of {found}, and the agent's broker is {self._identity}"
            raise FormatError(str(log_dir / META), rule)

    def _follow(self, named: tuple[Path, ...]) -> None:
        """Follow ``named``, after those that were named before and still answer: the later ones count."""
        left = [log_dir for log_dir in self.named if log_dir not in named and self._is_ours(log_dir)]
        followed = (*left, *named)
        for log_dir in set(followed) - set(self.named):
            logger.info("log_dir_added", folder=str(log_dir))
        for log_dir in set(self.named) - set(followed):
            logger.info("log_dir_left", folder=str(log_dir))
            if self._locks is not None:
                self._locks.release(log_dir)
        self.named = followed

    def _is_ours(self, log_dir: Path) -> bool:
        try:
            return read_identity(log_dir).is_of(self._identity)
        except (OSError, FormatError):
            return False


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
