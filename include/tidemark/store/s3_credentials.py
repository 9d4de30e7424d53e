"""Where the processes of Tidemark's get AWS's credentials: a source that is installed, else boto3's own chain.

Airflow's side installs a source where its configuration names a connection (:func:`use`). delta-rs does not look where
AWS's own tools do: it reads no profile. Keys in the environment it finds by itself; for anything else (a source, a
profile, a role that is assumed, the machine's or pod's role) boto3 is asked, so that the table is reached as the raw
store is.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from tidemark.store.options import StoreOptions

if TYPE_CHECKING:
    from boto3.session import Session
    from botocore.credentials import Credentials, RefreshableCredentials

_LASTING = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")

STATIC_KEYS = (*_LASTING, "AWS_SESSION_TOKEN")
"""The variables of keys, in the order in which botocore gives them. They win over any profile."""


class AwsAccess(NamedTuple):
    """A session with credentials, and the address of the S3 server where it is known with them."""

    session: Session
    endpoint_url: str | None = None

    def reached(self, options: StoreOptions) -> StoreOptions:
        """``options`` with the address that came with the credentials, which counts more than the topics file's.

        The session's region counts where the file has none.
        """
        given = {"endpoint_url": self.endpoint_url or options.endpoint_url}
        return options.model_copy(update={**given, "region": options.region or self.session.region_name})


AccessSource = Callable[[], AwsAccess]
"""Gives the access that counts now. It is asked whenever a client is made, so it keeps what is costly to make."""

_installed: list[AccessSource] = []


def use(source: AccessSource | None) -> None:
    """Have all clients of this process that are made from now on ask ``source``; None: boto3's chain again."""
    _installed[:] = [source] if source else []


def source() -> AccessSource | None:
    """What is installed."""
    return _installed[0] if _installed else None


def access() -> AwsAccess:
    """What counts now, by the installed source or by boto3's chain. Raises what the source raises."""
    from boto3.session import Session

    # Not boto3's global session, which would keep the first credentials it ever found.
    return _installed[0]() if _installed else AwsAccess(Session())


def delta_credentials() -> dict[str, str]:
    """delta-rs's storage options with keys that are valid now; none where it finds them itself, or there are none."""
    found = _installed_credentials() if _installed else _of_chain()
    if found is None:
        return {}
    keys = found.get_frozen_credentials()
    given = dict(zip(STATIC_KEYS, keys[:3], strict=True))
    return {name: value for name, value in given.items() if value}


def _installed_credentials() -> Credentials | None:
    found: Any = access().session.get_credentials()
    return cast("Credentials | None", found)


def _of_chain() -> Credentials | RefreshableCredentials | None:
    from botocore.credentials import RefreshableCredentials

    if all(os.environ.get(name) for name in _LASTING):
        return None
    environment = tuple(sorted((name, value) for name, value in os.environ.items() if name.startswith("AWS_")))
    found = _renewed.get(environment) or _chain()
    if isinstance(found, RefreshableCredentials):
        _renewed[environment] = found
    return found


_renewed: dict[tuple[tuple[str, str], ...], RefreshableCredentials] = {}
"""Credentials of roles, by AWS's variables: to find them costs a request, and they renew themselves."""


def _chain() -> Credentials | None:
    """What boto3's chain finds now."""
    from boto3.session import Session

    found: Any = Session().get_credentials()
    return cast("Credentials | None", found)
