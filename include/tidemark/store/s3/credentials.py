"""The source of AWS's credentials in Tidemark's processes: an installed one, else boto3's own chain.

Airflow's side installs a source if its configuration names a connection (:func:`use`). delta-rs finds keys in the
environment by itself, but reads no profile; for anything else (a source, a profile, a role that is assumed, the
machine's or pod's role) boto3 is asked, so that the table is reached with the raw store's credentials.
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
"""The variables of keys, in botocore's order. They win over any profile."""


class AwsAccess(NamedTuple):
    """A session with credentials, and the address of the S3 server if it is known with them."""

    session: Session
    endpoint_url: str | None = None

    def reached(self, options: StoreOptions) -> StoreOptions:
        """``options`` with the address that came with the credentials, which wins over the topics file's.

        The session's region is used if the file has none.
        """
        given = {"endpoint_url": self.endpoint_url or options.endpoint_url}
        return options.model_copy(update={**given, "region": options.region or self.session.region_name})


AccessSource = Callable[[], AwsAccess]
"""Returns the valid access. It is called whenever a client is made, so it keeps costly results."""

_installed: list[AccessSource] = []


def use(source: AccessSource | None) -> None:
    """Have all later clients of this process ask ``source``; None: boto3's chain again."""
    _installed[:] = [source] if source else []


def source() -> AccessSource | None:
    """The installed source, if any."""
    return _installed[0] if _installed else None


def access() -> AwsAccess:
    """The valid access, from the installed source or boto3's chain. Raises the errors of the source."""
    from boto3.session import Session

    # Not boto3's global session, which would keep the first credentials it ever found.
    return _installed[0]() if _installed else AwsAccess(Session())


def delta_credentials() -> dict[str, str]:
    """delta-rs's storage options with valid keys; none if it finds them itself, or if there are none."""
    credentials = _installed_credentials() if _installed else _of_chain()
    if credentials is None:
        return {}
    keys = credentials.get_frozen_credentials()
    given = dict(zip(STATIC_KEYS, keys[:3], strict=True))
    return {name: value for name, value in given.items() if value}


def _installed_credentials() -> Credentials | None:
    credentials: Any = access().session.get_credentials()
    return cast("Credentials | None", credentials)


def _of_chain() -> Credentials | RefreshableCredentials | None:
    from botocore.credentials import RefreshableCredentials

    if all(os.environ.get(name) for name in _LASTING):
        return None
    environment = tuple(sorted((name, value) for name, value in os.environ.items() if name.startswith("AWS_")))
    credentials = _renewed.get(environment) or _chain()
    if isinstance(credentials, RefreshableCredentials):
        _renewed[environment] = credentials
    return credentials


_renewed: dict[tuple[tuple[str, str], ...], RefreshableCredentials] = {}
"""Credentials of roles, by AWS's variables: finding them costs a request, and they renew themselves."""


def _chain() -> Credentials | None:
    """The credentials that boto3's chain finds now."""
    from boto3.session import Session

    credentials: Any = Session().get_credentials()
    return cast("Credentials | None", credentials)
