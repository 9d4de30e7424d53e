"""What names a store, and what opens it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_docs import fields
from tidemark.errors import FormatError
from tidemark.store import StoreOptions, open_store
from tidemark.store.base import Traffic
from tidemark.store.obstore.clients import CONNECT
from tidemark.store.obstore.factory import CLOUDS, delta_settings, endpoint, open_object_store
from tidemark.store.schemes import OPENED_BY, SCHEMES, split_store_url
from tidemark.table.delta_table import SETTINGS_OF_DELTA

ROOT = Path(__file__).parents[3]


def test_each_scheme_is_opened_and_has_credentials_and_settings_for_the_lake() -> None:
    assert OPENED_BY.keys() == SCHEMES.keys()
    clouds = SCHEMES.keys() - {"file"}
    assert SETTINGS_OF_DELTA.keys() == clouds
    assert {name for name, scheme in SCHEMES.items() if scheme.credentials} == clouds
    assert CLOUDS.keys() == CONNECT.keys() < clouds, "no cloud gets another one's client"


def test_a_cloud_that_nobody_has_described_is_not_taken_for_another() -> None:
    with pytest.raises(KeyError, match="swift"):
        open_object_store("swift://raw", StoreOptions(), Traffic())


def test_unused_options_are_options() -> None:
    for scheme in SCHEMES.values():
        assert scheme.unused <= StoreOptions.model_fields.keys()


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("s3://raw/a/b/", ("s3://raw", "a/b")),
        ("gs://raw_1.example.com/a", ("gs://raw_1.example.com", "a")),
        (f"gs://{'a' * 63}", (f"gs://{'a' * 63}", "")),
        (f"gs://{'a' * 63}.{'b' * 63}", (f"gs://{'a' * 63}.{'b' * 63}", "")),
        ("az://raw-1/a/b", ("az://raw-1", "a/b")),
        ("file:///a/b/", ("file:///a/b", "")),
    ],
)
def test_urls(url: str, parts: tuple[str, str]) -> None:
    assert split_store_url(url) == parts
    assert split_store_url(url, any_scheme=True) == parts


@pytest.mark.parametrize(
    "url",
    [
        *(
            "gs://",
            "gs:///a",
            "gs://ab",
            "gs://Raw",
            "gs://-raw",
            "gs://raw-",
            "gs://raw..a",
            "gs://raw.-a",
            "gs://10.0.0.1",
        ),
        *("gs://goog-raw", "gs://my-google-raw", f"gs://{'a' * 64}", "gs://raw?a", "gs://ra w"),
        *("az://", "az:///a", "az://ab", "az://Raw", "az://raw_1", "az://raw.1", "az://-raw", "az://raw-", "az://a--b"),
        *(
            f"az://{'a' * 64}",
            "az://$web",
            "az://user@raw",
            "s3://-raw",
            "s3://",
            "file://raw",
            "file:///",
            "raw",
            "://raw",
        ),
    ],
)
def test_what_is_no_url_is_refused_even_if_others_serve_more(url: str) -> None:
    for any_scheme in (False, True):
        with pytest.raises(
            FormatError, match=r"must be s3://<bucket>.*file:///<directory>; others need store\.backend"
        ):
            split_store_url(url, any_scheme=any_scheme)


@pytest.mark.parametrize("url", ["gs://raw", "az://raw"])
def test_options_of_s3_are_refused_when_a_store_is_opened(url: str) -> None:
    with pytest.raises(FormatError, match=r"do not know store\.expected_bucket_owner; leave it out"):
        open_store(url, StoreOptions(expected_bucket_owner="123456789012"))


def test_where_they_are_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "acme")
    own = StoreOptions(endpoint_url="http://127.0.0.1:9")
    in_path = StoreOptions(endpoint_url="http://127.0.0.1:9", path_style=True)
    assert endpoint("gs://raw", StoreOptions()) == "https://storage.googleapis.com"
    assert endpoint("gs://raw", own) == "http://127.0.0.1:9"
    assert endpoint("az://raw", StoreOptions()) == "https://acme.blob.core.windows.net"
    assert endpoint("az://raw", own) == "http://127.0.0.1:9"
    assert endpoint("az://raw", in_path) == "http://127.0.0.1:9/acme"
    assert delta_settings("gs://lake/t", StoreOptions()) == {
        "allow_http": "false",
        "google_base_url": "https://storage.googleapis.com",
    }
    assert delta_settings("az://lake/t", in_path) == {
        "allow_http": "true",
        "azure_storage_account_name": "acme",
        "azure_storage_endpoint": "http://127.0.0.1:9/acme",
    }


def test_the_documented_table_of_options_is_that_of_the_code() -> None:
    """A column for each scheme with options, a row for each of them that not all know."""
    text = (ROOT / "docs" / "storage.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("| `store.")
    ]
    schemes = [scheme for scheme in SCHEMES if scheme != "file"]
    said = {
        name.strip(" `").removeprefix("store."): {
            scheme for scheme, cell in zip(schemes, cells, strict=True) if cell == "refused"
        }
        for names, *cells in rows
        for name in names.split(",")
    }
    known = {name.partition(".")[0] for name in fields(StoreOptions)}
    assert said == {name: {scheme for scheme in schemes if name in SCHEMES[scheme].unused} for name in known}
