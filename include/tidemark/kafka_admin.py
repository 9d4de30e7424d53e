"""kafka-python's clients: the connection settings that all of them accept, and an admin client with two corrections.

The admin client leaves no thread behind, and :func:`patiently` waits for brokers.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError

from tidemark.errors import ConfigError

_READY_SECONDS: Final = 30.0
_RETRY_SECONDS: Final = 0.2
_BROKER: Final = re.compile(r"(?:[^\s:/@\[\]]+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?")


def checked_client(bootstrap: str, settings: Mapping[str, Any], source: str, place: str) -> dict[str, Any]:
    """kafka-python's settings for the brokers ``bootstrap``: ``HOST:PORT``, separated by commas.

    Raises:
        ConfigError: one of ``settings``, from ``source``, is not accepted by all clients, or ``bootstrap``, from
            ``place``, is wrong. No value of ``settings`` is in the message.
    """
    known = set(KafkaAdminClient.DEFAULT_CONFIG) & set(KafkaConsumer.DEFAULT_CONFIG) & set(KafkaProducer.DEFAULT_CONFIG)
    if other := sorted(set(map(str, settings)) - known):
        rule = "is not a connection setting that kafka-python's admin client, consumer and producer all accept"
        raise ConfigError(source, [(name, rule) for name in other])
    brokers = bootstrap.split(",")
    if wrong := [broker for broker in brokers if not _BROKER.fullmatch(broker.strip())]:
        raise ConfigError(place, [("", f"{wrong[0]!r} must be HOST:PORT; several are separated by commas")])
    return {**settings, "bootstrap_servers": brokers}


def client_settings(bootstrap: str, file: Path | None, option: str) -> dict[str, Any]:
    """kafka-python's settings for brokers, from the YAML ``file`` that a command's ``option`` names.

    Raises:
        ConfigError: the file cannot be read, or has other settings.
    """
    settings: object = {}
    if file is not None:
        try:
            settings = yaml.safe_load(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ConfigError(str(file), [(option, f"cannot be read: {error}")]) from error
    if not isinstance(settings, dict):
        raise ConfigError(str(file), [(option, "must be a mapping of kafka-python's settings")])
    return checked_client(bootstrap, settings, str(file), "--bootstrap")


class AdminClient(KafkaAdminClient):  # type: ignore[misc]  # kafka-python has no types
    """An admin client. Unlike kafka-python's own, it leaves no thread behind if its brokers do not answer."""

    def __init__(self, **settings: Any) -> None:
        try:
            super().__init__(**settings)
        except BaseException:
            if hasattr(self, "_net"):
                self._client.close()
                self._net.stop()
            raise


def patiently(ask: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """The cluster's answer. While the cluster is not ready, the question is repeated for a limited time.

    The admin client gives up at once, for example while the brokers create the topic of the groups' offsets.
    """
    until = time.monotonic() + _READY_SECONDS
    while True:
        try:
            return ask(*args, **options)
        except KafkaError as error:
            if not error.retriable or time.monotonic() > until:
                raise
            time.sleep(_RETRY_SECONDS)
