"""The identity of a writer for the store and this machine, recorded beside the name that a person gives."""

from __future__ import annotations

import getpass
import logging
import socket

from tidemark.store import StoreOptions
from tidemark.store.s3.credentials import access

_SECONDS = 5

log = logging.getLogger(__name__)


def identity(options: StoreOptions, *urls: str) -> str:
    """``<principal in the store> by <user>@<host>``; without a store on S3 among ``urls`` the second half alone.

    The principal comes from AWS's STS (``GetCallerIdentity``, which nobody can be refused); at another server, or if
    STS does not answer, it is the access key's public half. The user is that of this process.
    """
    here = f"{_user()}@{socket.gethostname()}"
    principal = _principal(options) if any(url.startswith("s3://") for url in urls) else None
    return f"{principal} by {here}" if principal else here


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in a container
        return "unknown"


def _principal(options: StoreOptions) -> str | None:
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    aws = access()
    session, options = aws.session, aws.reached(options)
    credentials = session.get_credentials()
    if credentials is None:
        return None
    if options.endpoint_url is None:
        config = Config(connect_timeout=_SECONDS, read_timeout=_SECONDS, retries={"total_max_attempts": 1})
        try:
            sts = session.client("sts", region_name=options.region, config=config)
            return str(sts.get_caller_identity()["Arn"])
        except (BotoCoreError, ClientError) as error:
            # The key identifies the principal, too, for people with access to AWS's list of keys.
            log.info("STS does not say whose the credentials are: %s", error)
    return f"key {credentials.get_frozen_credentials().access_key}"
