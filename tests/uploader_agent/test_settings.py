from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import cast

import pytest
from annotated_types import Le
from typer.testing import CliRunner

from tidemark.errors import ConfigError
from tidemark.store.options import LIMITS
from uploader_agent import __version__, cli
from uploader_agent.settings import AgentSettings, UploadSettings, is_fixed, load_settings

GOOD = """
broker: {properties: /etc/kafka/server.properties}
raw: {url: "s3://raw/prod"}
state_dir: /var/lib/tidemark
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "agent.yaml"
    path.write_text(text)
    return path


def test_defaults(tmp_path: Path) -> None:
    settings = load_settings(write(tmp_path, GOOD))
    assert settings.tail_after == timedelta(minutes=10)
    assert (settings.upload.concurrency, settings.http.host, settings.http.port) == (8, "127.0.0.1", None)


@pytest.mark.parametrize(
    ("line", "field", "rule"),
    [
        ("tail_afer: 5m", "tail_afer", "is not a known key; did you mean tail_after?"),
        ("tail_after: 5", "tail_after", "number with a unit"),
        ("upload: {concurrency: many}", "upload.concurrency", "valid integer"),
        ("upload: {concurrency: 0}", "upload.concurrency", "greater than or equal to 1"),
        ("include: ['(']", "include.0", "not a valid regular expression"),
        ("http: {port: 70000}", "http.port", "less than or equal to 65535"),
        ("cluster: 'a b'", "cluster", "not a valid cluster name"),
        ("tail_after: 5m\ntail_after: 6m", "", "appears twice"),
        (
            "index: {idle_interval: 10m}",
            "index.idle_interval",
            "is no longer a setting: the agent writes its index at least once a minute",
        ),
        ("scan_interval: 1s", "scan_interval", "is no longer a setting: the agent looks at the whole disk every 30s"),
        ("upload: {retry_cap: 1s}", "upload.retry_cap", "is no longer a setting: a failed partition is tried again"),
        ("store: {min_rate: 1KiB}", "store.min_rate", "is no longer a setting: each request has, beyond deadline,"),
        ("freshness: {'orders': 2s}", "freshness.orders", "must be at least 3s"),
        ("freshness: {'(': 60s}", "freshness.(.[key]", "not a valid regular expression"),
        ("broker: {properties: p, client: {ssl_ca: x}}", "broker.client", "knows no ssl_ca"),
    ],
)
def test_a_mistake_names_file_field_and_rule(tmp_path: Path, line: str, field: str, rule: str) -> None:
    key = line.partition(":")[0]
    path = write(tmp_path, "".join(f"{one}\n" for one in GOOD.splitlines() if not one.startswith(f"{key}:")) + line)
    with pytest.raises(ConfigError) as caught:
        load_settings(path)
    assert caught.value.source == str(path)
    [(where, what)] = caught.value.problems
    assert where == field
    assert rule in what


def test_the_first_pattern_that_matches_a_whole_name_is_the_freshness(tmp_path: Path) -> None:
    settings = load_settings(write(tmp_path, GOOD + "freshness: {'pay.*': 15s, 'orders|pay': 1m, 'late': 3s}\n"))
    found = {topic: settings.freshness_of(topic) for topic in ("payments", "pay", "orders", "orders-dlq", "late")}
    assert found == {"payments": 15.0, "pay": 15.0, "orders": 60.0, "orders-dlq": None, "late": 3.0}
    assert not is_fixed("freshness")


def test_missing_key_and_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="state_dir: is required"):
        load_settings(write(tmp_path, GOOD.replace("state_dir: /var/lib/tidemark", "")))
    with pytest.raises(ConfigError, match="cannot be read"):
        load_settings(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("broker: {properties: p, client: {ssl_password: [hunter2]}}", "broker.client.ssl_password"),
        ("broker: {properties: p, client: {sasl_plain_password: hunter2, ssl_ca: x}}", "knows no ssl_ca"),
        ("store: {endpoint_url: 'https://me:hunter2@s3.example'}", "https://***@s3.example"),
        ("broker: {properties: p, client: {ssl_password: 'hunter2}}", "is not valid YAML: line"),
    ],
)
def test_a_mistake_shows_no_secret(tmp_path: Path, line: str, told: str) -> None:
    key = line.partition(":")[0]
    path = write(tmp_path, "".join(f"{one}\n" for one in GOOD.splitlines() if not one.startswith(f"{key}:")) + line)
    with pytest.raises(ConfigError) as caught:
        load_settings(path)
    assert told in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None, "a cause would be shown with it"


def test_a_mistake_in_the_environment_shows_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_AGENT__BROKER__CLIENT__SSL_PASSWORD", "[hunter2")
    with pytest.raises(ConfigError, match="SSL_PASSWORD: is not valid YAML") as caught:
        load_settings(write(tmp_path, GOOD))
    assert "hunter2" not in str(caught.value)


def test_environment_overrides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_AGENT__UPLOAD__CONCURRENCY", "3")
    assert load_settings(write(tmp_path, GOOD)).upload.concurrency == 3


@pytest.mark.parametrize(
    ("topic", "taken"),
    [
        ("orders", True),
        ("orders.dlq", False),
        ("payments", False),
        ("__consumer_offsets", False),
        ("orders-app-store-changelog", False),
        ("orders-app-by-key-repartition", False),
        ("orders.changelog.v2", True),
    ],
)
def test_which_topics(topic: str, taken: bool) -> None:
    base = {"broker": {"properties": "p"}, "raw": {"url": "s3://raw"}, "state_dir": "s"}
    settings = AgentSettings.model_validate(base | {"include": ["orders.*"], "exclude": [".*dlq"]})
    assert settings.accepts_topic(topic) is taken
    everything = AgentSettings.model_validate(base | {"internal_topics": True})
    assert everything.accepts_topic(topic)


def test_cli_tells_a_configuration_error_and_exits_with_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, GOOD + "tail_afer: 5m\n")
    monkeypatch.setattr("sys.argv", ["tidemark-agent", "upload-once", "-c", str(path)])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    assert f"{path}: tail_afer: is not a known key" in capsys.readouterr().err


@pytest.mark.parametrize("command", [[], ["run"], ["upload-once"], ["status"], ["config"], ["config", "check"]])
def test_help(command: list[str]) -> None:
    result = CliRunner().invoke(cli.app, [*command, "--help"])
    assert result.exit_code == 0
    assert "Usage" in result.output


def test_version() -> None:
    assert CliRunner().invoke(cli.app, ["--version"]).output == f"{__version__}\n"


def test_the_connections_that_are_kept_suffice_for_all_uploads() -> None:
    most = next(rule.le for rule in UploadSettings.model_fields["concurrency"].metadata if isinstance(rule, Le))
    assert LIMITS.connections >= cast("int", most) + 2
