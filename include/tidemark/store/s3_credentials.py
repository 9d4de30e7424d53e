"""AWS's credentials for a client that does not look where AWS's own tools do: delta-rs reads no profile.

Keys in the environment it finds by itself. For anything else (a profile of a credentials file, a role that it assumes,
the machine's or pod's role) boto3's chain is asked, so that the table is reached as the raw store is.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from botocore.credentials import Credentials, RefreshableCredentials

_LASTING = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")

STATIC_KEYS = (*_LASTING, "AWS_SESSION_TOKEN")
"""The variables of keys, in the order in which botocore gives them. They win over any profile."""


def delta_credentials() -> dict[str, str]:
    """delta-rs's storage options with keys that are valid now; none where it finds them itself, or there are none."""
    from botocore.credentials import RefreshableCredentials

    if all(os.environ.get(name) for name in _LASTING):
        return {}
    environment = tuple(sorted((name, value) for name, value in os.environ.items() if name.startswith("AWS_")))
    found = _renewed.get(environment) or _chain()
    if found is None:
        return {}
    if isinstance(found, RefreshableCredentials):
        _renewed[environment] = found
    keys = found.get_frozen_credentials()
    given = dict(zip(STATIC_KEYS, keys[:3], strict=True))
    return {name: value for name, value in given.items() if value}


_renewed: dict[tuple[tuple[str, str], ...], RefreshableCredentials] = {}
"""Credentials of roles, by AWS's variables: to find them costs a request, and they renew themselves."""


def _chain() -> Credentials | None:
    """What boto3's chain finds now."""
    from boto3.session import Session

    found: Any = Session().get_credentials()
    return cast("Credentials | None", found)
