"""kafka-python's admin client, with two of its habits mended: it leaves no thread behind, and it waits for brokers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from kafka import KafkaAdminClient
from kafka.errors import KafkaError

_READY_SECONDS: Final = 30.0
_RETRY_SECONDS: Final = 0.2


class AdminClient(KafkaAdminClient):  # type: ignore[misc]  # kafka-python has no types
    """An admin client; one whose brokers do not answer leaves no thread behind, as kafka-python's own does."""

    def __init__(self, **settings: Any) -> None:
        try:
            super().__init__(**settings)
        except BaseException:
            if hasattr(self, "_net"):
                self._client.close()
                self._net.stop()
            raise


def patiently(ask: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """The cluster's answer; while it is not ready, it is asked again for a limited time.

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
