"""An S3 server on this machine: SeaweedFS, which is durable, checks checksums and does conditional writes properly.

Ready means that a put and a get succeed, not that something listens. Every server has credentials of its own and
an administrator that creates its buckets; further users get exactly the policy that is named for them. Tests that
need users, or buckets of a kind, have them as :class:`OwnBuckets` on the server of their process.

Its listings are not S3's: it descends into ``orders/`` before ``orders-dlq/``, so ``StartAfter`` across prefixes
skips keys, and a prefix emptied by deletes still shows as a common prefix. Its sockets lie in the system's
temporary directory, named after the port.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tests.support.paths import env_bin
from tests.support.ports import HOST, free_ports
from tests.support.process import ManagedProcess, ProcessRecord

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

ADMIN = "admin"
REGION = "us-east-1"
_READY = "ready"  # a bucket of our own: nothing that a test lists may hold an object of ours
_PORTS = ("s3.port", "master.port", "volume.port", "filer.port", "admin.port")
_FLAGS = (
    "-webdav=false",
    "-admin.ui=false",
    "-s3.port.iceberg=0",
    "-s3.port.lance=0",
    "-s3.allowDeleteBucketNotEmpty=false",
    "-s3.autoCreateBucket=false",
    "-s3.iam.readOnly=false",
    "-master.telemetry=false",
    "-volume.preStopSeconds=0",
    # Each bucket takes a volume of its own. Without this their number follows from the free space of the disk.
    "-volume.max=1000",
)
# All that the server gets of this machine's environment: it would take AWS_* for an identity of its own.
_ENVIRONMENT = ("PATH", "TMPDIR", "LANG")


def allow(actions: Sequence[str], resources: Sequence[str]) -> dict[str, object]:
    """A policy statement: ``allow(["s3:PutObject"], ["arn:aws:s3:::raw/*"])``."""
    return {"Effect": "Allow", "Action": list(actions), "Resource": list(resources)}


@dataclass(frozen=True)
class Credentials:
    """An access key; the secret half stays out of messages."""

    access_key: str = field(default_factory=lambda: secrets.token_hex(10).upper())
    secret_key: str = field(default_factory=lambda: secrets.token_urlsafe(30), repr=False)


class S3Server:
    """A server that keeps its data under ``root``, also over :meth:`kill` and :meth:`start`; usable with ``with``."""

    def __init__(
        self,
        root: Path,
        *,
        buckets: Sequence[str] = ("raw", "lake"),
        versioned: Sequence[str] = (),
        locked: Sequence[str] = (),
        users: Mapping[str, Sequence[Mapping[str, object]]] | None = None,
        host: str = HOST,
        tls: tuple[Path, Path] | None = None,
    ) -> None:
        """Nothing is started yet. ``users`` maps a name to the statements of its policy, see :func:`allow`.

        Those of ``buckets`` that are ``versioned`` keep every version of an object. Those that are ``locked`` do so,
        too, each for a day by Object Lock in governance mode. ``host`` is the address of this machine to listen at.
        With ``tls`` it speaks HTTPS: the files have the authorities that clients trust, and the server's key and
        certificate; each start reads them.
        """
        self._root = root.resolve()
        self._buckets, self._locked, self._versioned = list(buckets), frozenset(locked), frozenset(versioned)
        self._users = dict(users or {})
        self.credentials = {ADMIN: Credentials()}
        self._served = False
        http, grpc = free_ports(len(_PORTS)), free_ports(len(_PORTS))
        ports = [f"-{name}={port}" for name, port in zip(_PORTS, http, strict=True)]
        ports += [f"-{name}.grpc={port}" for name, port in zip(_PORTS, grpc, strict=True)]
        self._authorities = tls[0] if tls else None
        secured = [f"-s3.{what}.file={tls[1]}" for what in ("cert", "key")] if tls else []
        self.endpoint = f"http{'s' if tls else ''}://{host}:{http[0]}"
        places = [f"-dir={self._root / 'data'}", f"-ip={host}", f"-ip.bind={host}", f"-s3.config={self._config_path}"]
        kept = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        self.process = ManagedProcess(
            "s3",
            [env_bin("dev", "weed"), "-logtostderr", "mini", *places, *ports, *secured, *_FLAGS],
            log=self._root / "s3.log",
            env={**kept, "HOME": str(self._root)},
            cwd=self._root,
        )

    def start(self) -> Self:
        """Start it and wait until it stores and returns an object; its buckets exist then."""
        (self._root / "data").mkdir(parents=True, exist_ok=True)
        self._write_config()
        self.process.start()
        try:
            self.process.wait_until(self._works)
            for name in self._users.keys() - self.credentials.keys():
                self.add_user(name, self._users[name])
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Clean stop; the data stays."""
        self.process.stop(timeout=10)

    def kill(self) -> None:
        """SIGKILL; the data stays."""
        self.process.kill()

    def restart(self) -> None:
        """Stop and start on the same address with the same data."""
        self.stop()
        self.start()

    def record(self) -> ProcessRecord:
        """The running process, for another process to stop."""
        return self.process.record()

    def add_user(self, name: str, statements: Sequence[Mapping[str, object]]) -> Credentials:
        """Add a user whose policy has these statements; it may act at once."""
        iam = self._iam()
        iam.create_user(UserName=name)
        policy = json.dumps({"Version": "2012-10-17", "Statement": list(statements)})
        made = iam.create_policy(PolicyName=name, PolicyDocument=policy)["Policy"]
        iam.attach_user_policy(UserName=name, PolicyArn=made["Arn"])
        return self._give_key(iam, name)

    def rotate(self, name: str) -> Credentials:
        """Revoke the key of a user that was added, and give it another one."""
        iam = self._iam()
        iam.delete_access_key(UserName=name, AccessKeyId=self.credentials[name].access_key)
        return self._give_key(iam, name)

    def _give_key(self, iam: Any, name: str) -> Credentials:
        key = iam.create_access_key(UserName=name)["AccessKey"]
        self.credentials[name] = Credentials(key["AccessKeyId"], key["SecretAccessKey"])
        return self.credentials[name]

    def _iam(self) -> Any:
        return self._client("iam", ADMIN)

    def client(self, user: str = ADMIN) -> S3Client:
        """A boto3 client of a user; it gives up within seconds when the server is down."""
        config = Config(
            s3={"addressing_style": "path"}, retries={"total_max_attempts": 2}, connect_timeout=5, read_timeout=30
        )
        client: S3Client = self._client("s3", user, config)
        return client

    def _client(self, service: Literal["s3", "iam"], user: str, config: Config | None = None) -> Any:
        found = self.credentials[user]
        return boto3.client(
            service,
            endpoint_url=self.endpoint,
            region_name=REGION,
            aws_access_key_id=found.access_key,
            aws_secret_access_key=found.secret_key,
            config=config,
            verify=str(self._authorities) if self._authorities else None,
        )

    def env(self, user: str = ADMIN) -> dict[str, str]:
        """Environment variables that make AWS clients use this server as a user."""
        found = self.credentials[user]
        return {
            "AWS_ACCESS_KEY_ID": found.access_key,
            "AWS_SECRET_ACCESS_KEY": found.secret_key,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ENDPOINT_URL": self.endpoint,
            **({"AWS_CA_BUNDLE": str(self._authorities)} if self._authorities else {}),
        }

    def connection(self, user: str = ADMIN) -> str:
        """The same as an Airflow connection of type ``aws``, in JSON."""
        found = self.credentials[user]
        extra = {"endpoint_url": self.endpoint, "region_name": REGION}
        keys = {"login": found.access_key, "password": found.secret_key}
        return json.dumps({"conn_type": "aws", **keys, "extra": extra})

    def create_bucket(self, bucket: str, *, versioned: bool = False, locked: bool = False) -> None:
        """Create an empty bucket. If it is ``locked``, it is versioned, too."""
        client = self.client()
        client.create_bucket(Bucket=bucket, ObjectLockEnabledForBucket=locked)
        if versioned or locked:
            client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
        if locked:
            rule: Any = {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 1}}
            lock: Any = {"ObjectLockEnabled": "Enabled", "Rule": rule}
            client.put_object_lock_configuration(Bucket=bucket, ObjectLockConfiguration=lock)

    def lock_nothing(self, bucket: str) -> None:
        """Have a ``locked`` bucket lock only what it is asked to lock."""
        lock: Any = {"ObjectLockEnabled": "Enabled"}
        self.client().put_object_lock_configuration(Bucket=bucket, ObjectLockConfiguration=lock)

    @property
    def _config_path(self) -> Path:
        return self._root / "s3.json"

    def _write_config(self) -> None:
        admin = self.credentials[ADMIN]
        keys = [{"accessKey": admin.access_key, "secretKey": admin.secret_key}]
        actions = ["Admin", "Read", "Write", "List", "Tagging"]
        self._config_path.touch(mode=0o600)
        self._config_path.write_text(
            json.dumps({"identities": [{"name": ADMIN, "credentials": keys, "actions": actions}]})
        )

    def _works(self) -> bool:
        """Whether objects can be written and read, also those from before a restart; creates missing buckets."""
        client, body = self.client(), secrets.token_bytes(8)
        try:
            existing = {bucket["Name"] for bucket in client.list_buckets()["Buckets"]}
            for bucket in (_READY, *self._buckets):
                if bucket not in existing:
                    self.create_bucket(bucket, versioned=bucket in self._versioned, locked=bucket in self._locked)
            if self._served:
                client.get_object(Bucket=_READY, Key="ready")
            client.put_object(Bucket=_READY, Key="ready", Body=body)
            self._served = client.get_object(Bucket=_READY, Key="ready")["Body"].read() == body
        except (BotoCoreError, ClientError):
            return False  # still starting; the log's tail is shown if it never comes up
        return self._served

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()  # what it keeps is nobody's any more


class OwnBuckets:
    """Two buckets, and users, of one's own on a server that others use as well."""

    def __init__(
        self,
        server: S3Server,
        *,
        versioned: Sequence[str] = (),
        locked: Sequence[str] = (),
        users: Mapping[str, Sequence[Mapping[str, object]]] | None = None,
    ) -> None:
        """Create them. Statements of ``users``, ``versioned`` and ``locked`` call the buckets ``raw`` and ``lake``."""
        mark = secrets.token_hex(5)
        self._server, self._mark = server, mark
        self.raw, self.lake = f"raw-{mark}", f"lake-{mark}"
        self._locked = [f"{name}-{mark}" for name in locked]
        for name in ("raw", "lake"):
            server.create_bucket(f"{name}-{mark}", versioned=name in versioned, locked=name in locked)
        for name, statements in (users or {}).items():
            own = re.sub(r"(arn:aws:s3:::(raw|lake))(?=[/\"])", rf"\1-{mark}", json.dumps(list(statements)))
            server.add_user(self._name(name), json.loads(own))

    @property
    def endpoint(self) -> str:
        """The server's URL."""
        return self._server.endpoint

    def credentials(self, user: str) -> Credentials:
        """The key that a user has now."""
        return self._server.credentials[self._name(user)]

    def rotate(self, user: str) -> Credentials:
        """See :meth:`S3Server.rotate`."""
        return self._server.rotate(self._name(user))

    def client(self, user: str = ADMIN) -> S3Client:
        """See :meth:`S3Server.client`."""
        return self._server.client(self._name(user))

    def env(self, user: str = ADMIN) -> dict[str, str]:
        """See :meth:`S3Server.env`."""
        return self._server.env(self._name(user))

    def connection(self, user: str = ADMIN) -> str:
        """See :meth:`S3Server.connection`."""
        return self._server.connection(self._name(user))

    def lock_nothing(self) -> None:
        """Have its ``locked`` buckets lock only what they are asked to lock."""
        for bucket in self._locked:
            self._server.lock_nothing(bucket)

    def _name(self, user: str) -> str:
        return user if user == ADMIN else f"{user}-{self._mark}"
