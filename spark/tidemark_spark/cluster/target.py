"""Target of a job's tasks: a master, or a Spark Connect server."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from tidemark.errors import ConfigError
from tidemark.jobs.options import SparkOptions

_SERVER = re.compile(r"sc://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:]+\])(:[0-9]{1,5})?(/(;[^/\s]*)?)?")


class ClusterTarget(NamedTuple):
    """``master`` starts Spark's driver in this process, ``remote`` is a Connect server with a running driver."""

    master: str | None = None
    remote: str | None = None

    @classmethod
    def of(cls, options: SparkOptions) -> ClusterTarget:
        """Target in ``options``, or else in Spark's variable ``SPARK_REMOTE``.

        Raises:
            ConfigError: the server's URL is invalid. The message does not repeat it, since it may hold a token.
        """
        remote = options.remote or (None if options.master else os.environ.get("SPARK_REMOTE") or None)
        if remote is not None and not _SERVER.fullmatch(remote):
            rule = "must be sc://host:port, with parameters as in sc://host:port/;use_ssl=true if any"
            raise ConfigError("Spark Connect", [("--remote, or SPARK_REMOTE", rule)])
        return cls(options.master, remote)
