"""``catalogs:`` of the topics file: the catalogs that list tables, for engines that find tables by name."""

from __future__ import annotations

import re
from typing import ClassVar, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from tidemark.config import Settings, is_secret

_PART: Final = r"[A-Za-z0-9_]+(?:-[A-Za-z0-9_]+)*"
_PASSWORD: Final = re.compile(r"//[^/@]*:[^/@]*@")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

NEED_URI: Final = frozenset({"rest", "hive", "sql"})


class CatalogSettings(Settings):
    """One catalog of Iceberg tables, as pyiceberg reaches it.

    ``properties`` are pyiceberg's own (https://py.iceberg.apache.org/configuration). ``secrets`` has the secret
    properties, each with the name of the environment variable that holds it. An Airflow ``connection`` gives ``uri``
    and, as ``credential``, login and password. With a ``delta_suffix``, Glue and Hive's metastore also list the Delta
    table itself, under the table's name with this suffix.
    """

    removed: ClassVar = {"keep": "each catalog forgets a snapshot a day after it was replaced"}

    name: str = Field(pattern=r"^[a-z][a-z0-9_-]{0,62}$")
    kind: Literal["rest", "glue", "hive", "sql"]
    uri: str | None = None
    warehouse: str | None = None
    namespace: str = Field(pattern=rf"^{_PART}(?:\.{_PART})*$")
    properties: dict[str, str] = Field(default_factory=dict)
    secrets: dict[str, str] = Field(default_factory=dict)
    connection: str | None = None
    delta_suffix: str | None = Field(default=None, pattern=r"^[a-z0-9_]{1,32}$")

    @field_validator("uri")
    @classmethod
    def _check_uri(cls, uri: str | None) -> str | None:
        if uri is not None and _PASSWORD.search(uri):
            raise ValueError("must not have a password; name a variable under secrets.uri, or an Airflow connection")
        return uri

    @field_validator("properties")
    @classmethod
    def _check_properties(cls, properties: dict[str, str]) -> dict[str, str]:
        for name, value in properties.items():
            if is_secret(name) or _PASSWORD.search(value):
                raise ValueError(f"{name} is secret: name the environment's variable that holds it under secrets")
        return properties

    @field_validator("secrets")
    @classmethod
    def _check_secrets(cls, secrets: dict[str, str]) -> dict[str, str]:
        for name, variable in secrets.items():
            if not _VARIABLE.fullmatch(variable):
                raise ValueError(f"{name} must name a variable of the environment, such as CATALOG_TOKEN")
        return secrets

    @model_validator(mode="after")
    def _check_reachable(self) -> Self:
        if self.kind in NEED_URI and not (self.uri or self.connection or "uri" in self.secrets):
            raise ValueError(f"catalog {self.name}: uri is required, or secrets.uri, or an Airflow connection")
        return self

    @model_validator(mode="after")
    def _check_delta(self) -> Self:
        if self.delta_suffix is not None and self.kind not in {"glue", "hive"}:
            rule = "delta_suffix is for the kinds glue and hive: no other has Delta tables, too"
            raise ValueError(f"catalog {self.name}: {rule}")
        return self


def delta_table(table: str, suffix: str) -> str:
    """The name of the Delta table itself in a catalog: Glue and Hive have no upper-case letters."""
    return f"{catalog_table(table)}{suffix}".lower()


def catalog_table(table: str) -> str:
    """The name of a table in catalogs, with underscores for characters that SQL would have to quote."""
    return re.sub(r"[^A-Za-z0-9_]", "_", table)
