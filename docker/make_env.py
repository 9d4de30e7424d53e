"""Writes docker/secrets for docker-compose.yaml: random keys and passwords, and what the store lets each role do.

Needs Python alone. An existing folder is kept: its keys are in the store and the database by now.
"""

from __future__ import annotations

import base64
import json
import secrets
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
POLICIES = HERE.parent / "deploy" / "policies"
PLACEHOLDERS = {
    "<bucket>": "raw",
    "<prefix>": "tidemark",
    "<lake>": "lake",
    "<tables>": "tables",
    "<cluster>": "demo",
    "<broker>": "1",
}
ADMIN = "admin"
BY_VARIABLES = ("agent", "worker")
BY_PROFILES = {"page": ("page",), "jobs": ("maintenance", "retention"), "watch": ("watch",)}
"""The roles whose keys a service of Airflow's has as profiles of a file, by the file's name."""
PASSWORDS = (
    "AIRFLOW_ADMIN_PASSWORD",
    "AIRFLOW_API_SECRET_KEY",
    "AIRFLOW_JWT_SECRET",
    "AIRFLOW_REVIEWER_PASSWORD",
    "POSTGRES_PASSWORD",
)
Keys = dict[str, tuple[str, str]]


def new_keys() -> Keys:
    """An access key and its secret for the administrator and each role."""
    roles = (*BY_VARIABLES, *(role for roles in BY_PROFILES.values() for role in roles))
    return {name: (secrets.token_hex(10), secrets.token_hex(24)) for name in (ADMIN, *roles)}


def store_identities(keys: Keys) -> str:
    """The configuration of SeaweedFS's S3 server: everything for the administrator, to each role its policy."""
    identities = [
        {"name": name, "credentials": [{"accessKey": access, "secretKey": secret}], **_rights(name)}
        for name, (access, secret) in keys.items()
    ]
    policies = [{"name": name, "content": json.dumps(policy(name))} for name in keys if name != ADMIN]
    return json.dumps({"identities": identities, "policies": policies}, indent=2)


def _rights(name: str) -> dict[str, list[str]]:
    return {"actions": ["Admin", "Read", "Write", "List", "Tagging"]} if name == ADMIN else {"policyNames": [name]}


def policy(role: str) -> object:
    """The role's policy in deploy/policies, for the buckets, the cluster and the broker of docker-compose.yaml."""
    text = (POLICIES / f"{role}.json").read_text(encoding="utf-8")
    for placeholder, name in PLACEHOLDERS.items():
        text = text.replace(placeholder, name)
    return json.loads(text)


def credentials(keys: Keys, roles: tuple[str, ...]) -> str:
    """A credentials file as AWS's tools read it, with a profile for each role."""
    lines = ("[{}]\naws_access_key_id = {}\naws_secret_access_key = {}\n".format(role, *keys[role]) for role in roles)
    return "".join(lines)


def variables(keys: Keys) -> str:
    """What docker-compose.yaml takes as variables; all are letters, digits, ``-``, ``_`` and, in Fernet keys, ``=``."""
    values = {name: secrets.token_hex(24) for name in PASSWORDS}
    values["AIRFLOW_FERNET_KEY"] = base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()
    for role in BY_VARIABLES:
        values[f"STORE_{role.upper()}_ACCESS_KEY"], values[f"STORE_{role.upper()}_SECRET_KEY"] = keys[role]
    return "".join(f"{name}={value}\n" for name, value in values.items())


def main() -> int:
    """Write the folder, closed to all but its owner; 1 if there is one."""
    folder = HERE / "secrets"
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        sys.stderr.write(f"{folder} exists and is kept: delete it to have other values\n")
        return 1
    keys = new_keys()
    (folder / "env").touch(mode=0o600)
    (folder / "env").write_text(variables(keys), encoding="utf-8")
    mounted = {f"credentials-{name}": credentials(keys, roles) for name, roles in BY_PROFILES.items()}
    for name, text in {"store-identities": store_identities(keys), **mounted}.items():
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(
            0o644
        )  # a container's user is not the folder's owner, who alone gets here on this machine
    sys.stdout.write(
        f"{folder} is written: AIRFLOW_ADMIN_PASSWORD and AIRFLOW_REVIEWER_PASSWORD in env are for Airflow's pages\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
