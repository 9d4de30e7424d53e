"""Hints from ZooKeeper: watches on the nodes that a change of leader writes. The broker is asked all the same.

The watches are on the state of each partition on this broker's disks, the list of topics and the list of brokers. A
watch fires once and is set again before the hint is given, so that no change is missed in between. A lost session ends
the watches: they are set again in the next session, and the broker is asked once. If ZooKeeper cannot be reached or
refuses the login, changes are noticed later, and nothing else suffers.

Source: Kafka's ``ZkData`` (paths); kazoo's ``KazooClient`` (states, one-shot watches).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from copy import deepcopy
from typing import Any

import structlog
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.protocol.states import EventType, KazooState, WatchedEvent
from typing_extensions import override

from tidemark.formats.keys import TopicPartition
from uploader_agent.broker.leadership_hints import TOPICS, LeadershipHints, state_path

logger = structlog.get_logger(__name__)

_BROKERS = "/brokers/ids"
_PATIENCE = 10.0
"""Seconds for ZooKeeper to answer one request."""

_RETRY = 30.0
"""Seconds without a connection after which a new client is made: after a refused login, a client never tries again."""

_LOGIN = "broker.zookeeper in the agent's file says how to log in, and which certificates to trust (PEM files)"


class ZooKeeperHints(LeadershipHints):
    """Hints from kazoo, with the connection in a thread of its own."""

    def __init__(self, options: Mapping[str, Any], *, retry: float = _RETRY) -> None:
        """Prepare to connect with ``options`` of ``KazooClient``, which include ``hosts``."""
        self._options = deepcopy(dict(options))  # kazoo changes its arguments
        self._retry = retry
        self._hint: Callable[[], None] = _nobody
        self._wanted: frozenset[str] = frozenset({TOPICS, _BROKERS})
        self._unset: set[str] = set()
        self._connected = False
        self._works: bool | None = None
        self._closing = threading.Event()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="zookeeper", daemon=True)

    @override
    def start(self, hint: Callable[[], None]) -> None:
        self._hint = hint
        self._thread.start()

    @override
    def watch(self, replicas: Collection[TopicPartition]) -> None:
        wanted = frozenset({TOPICS, _BROKERS, *map(state_path, replicas)})
        with self._changed:
            self._unset |= wanted - self._wanted
            self._wanted = wanted
            self._changed.notify_all()

    @override
    def close(self) -> None:
        self._closing.set()
        with self._changed:
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(_PATIENCE)

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self._use_a_client()
            except Exception as error:  # noqa: BLE001 - a failure of hints must not end the agent
                logger.warning("zookeeper_unavailable", error=f"{type(error).__name__}: {error}")
                self._closing.wait(self._retry)

    def _use_a_client(self) -> None:
        """Keep the watches of one client set until it has no connection for too long, or until ``close``."""
        client = KazooClient(**{"connection_retry": {"max_tries": -1}, **self._options})
        client.add_listener(self._on_state)
        client.start_async()
        try:
            while not self._closing.is_set():
                with self._changed:
                    self._changed.wait_for(self._is_due, timeout=self._retry)
                    connected = self._connected
                    unset, self._unset = (self._unset, set()) if connected else (set(), self._unset)
                if not connected:
                    self._log_change(works=False)
                    return
                if unset and self._set(client, unset):
                    self._log_change(works=True)
                    self._hint()
        finally:
            client.remove_listener(self._on_state)
            self._connected = False
            client.stop()
            client.close()

    def _is_due(self) -> bool:
        return self._closing.is_set() or (self._connected and bool(self._unset))

    def _log_change(self, *, works: bool) -> None:
        """Log that watching works, or that it does not, if that has changed."""
        if works == self._works or self._closing.is_set():
            return
        self._works = works
        if works:
            logger.info("zookeeper_watched", hosts=self._options["hosts"])
        else:
            hosts = self._options["hosts"]
            logger.warning("zookeeper_not_watched", hosts=hosts, instead="the broker is polled", hint=_LOGIN)

    def _set(self, client: KazooClient, paths: Collection[str]) -> bool:
        """Set the watches on ``paths``; return True if ZooKeeper answered. Others are set with the next connection."""
        asked = [(path, _ask(client, path, self._on_event)) for path in self._wanted.intersection(paths)]
        deadline, answered = time.monotonic() + _PATIENCE, not asked
        for path, answer in asked:
            try:
                answer.get(timeout=max(0.0, deadline - time.monotonic()))
                answered = True
            except NoNodeError:
                answered = True
            except (KazooException, client.handler.timeout_exception) as error:
                logger.debug("not_watched", path=path, error=f"{type(error).__name__}: {error}")
        return answered

    def _on_state(self, state: str) -> None:
        with self._changed:
            self._connected = state == KazooState.CONNECTED
            if self._connected:
                self._unset = set(self._wanted)
            self._changed.notify_all()

    def _on_event(self, event: WatchedEvent) -> None:
        if event.type == EventType.NONE:
            return  # the connection's state, which the listener gets as well
        with self._changed:
            self._unset.add(event.path)
            self._changed.notify_all()


def _ask(client: KazooClient, path: str, watch: Callable[[WatchedEvent], None]) -> Any:
    """Watch a list of children for new ones, or a partition's state, which need not exist yet."""
    if path in {TOPICS, _BROKERS}:
        return client.get_children_async(path, watch=watch)
    return client.exists_async(path, watch=watch)


def _nobody() -> None:
    """Ignore a change before :meth:`ZooKeeperHints.start` sets the callback."""
