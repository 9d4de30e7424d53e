"""What lies under deploy/ parses, names only what exists, and keeps the house's rules."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import promql_parser
import pytest
import typer.main
import yaml

from tests.support.paths import ROOT
from tidemark.cli.app import app as operator_app
from uploader_agent.cli import app as agent_app
from uploader_agent.observability import metrics_doc
from uploader_agent.observability.metrics import Metrics
from uploader_agent.settings import AgentSettings

DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "systemd" / "tidemark-agent.service"
LINKS = DEPLOY / "systemd" / "tidemark-agent.service.d" / "hold-links.conf"
RULES = [
    rule
    for group in yaml.safe_load((DEPLOY / "prometheus" / "tidemark-agent.rules.yaml").read_text())["groups"]
    for rule in group["rules"]
]
DASHBOARD = json.loads((DEPLOY / "grafana" / "tidemark-agent.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]

METRICS = Metrics()
LINES = metrics_doc.lines(METRICS)
PARTS = ("_bucket", "_sum", "_count")
SERVED = {one.name for one in LINES} | {one.name + part for one in LINES if one.kind == "histogram" for part in PARTS}
LABELS = {name for names in METRICS.labels.values() for name in names} | {"job", "instance", "le"}

rules = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])


def selectors(expression: str) -> list[promql_parser.VectorSelector]:
    """The metrics that an expression reads. Raises ValueError if it is none of Prometheus' query language."""
    found: list[promql_parser.VectorSelector] = []

    def visit(node: object) -> bool:
        found.extend([node] if isinstance(node, promql_parser.VectorSelector) else [])
        return True

    promql_parser.walk(promql_parser.parse(expression), visit)
    return found


def check_expression(expression: str) -> set[str]:
    """That it parses and reads what the agent serves; the metrics' names."""
    found = selectors(expression)
    assert found
    for selector in found:
        assert selector.name in SERVED | {"up"}, expression
        assert {matcher.name for matcher in selector.matchers.matchers} <= LABELS, expression
    return {str(selector.name) for selector in found}


@rules
def test_an_alert_reads_metrics_that_exist(rule: dict[str, Any]) -> None:
    check_expression(rule["expr"])
    assert re.fullmatch(r"\d+[mh]", rule.get("for", "0m"))


def test_a_wrong_expression_is_seen() -> None:
    with pytest.raises(ValueError, match="unclosed"):
        check_expression("rate(tidemark_agent_scans_total[5m]")
    for wrong in ("tidemark_agent_lag_segements > 0", 'tidemark_agent_failures_total{kinds="x"} > 0'):
        with pytest.raises(AssertionError):
            check_expression(wrong)


@rules
def test_an_alert_says_what_is_wrong_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert set(rule["annotations"]) == {"summary", "description", "runbook"}
    runbook = rule["annotations"]["runbook"]
    assert "`" in runbook, "a command to run"
    sources = "".join(path.read_text() for path in (ROOT / "uploader_agent").rglob("*.py"))
    assert not [event for event in re.findall(r"-g (\w+)", runbook) if not re.search(rf'\(.*"{event}"', sources)]
    for name, rest in re.findall(r"`(tidemark(?:-agent)?) ([^`]+)`", runbook):
        assert is_command(name, rest.split()), f"{name} {rest}"
    settings = set(re.findall(r"`([a-z]+\.[a-z_]+)`", runbook)) - {"log.retention.ms"}
    assert not [field for field in settings if not has_field(field)]


def is_command(program: str, words: list[str]) -> bool:
    """Whether the program has the command that ``words`` begin with."""
    found: Any = typer.main.get_command({"tidemark": operator_app, "tidemark-agent": agent_app}[program])
    for word in words:
        if word.startswith("-") or not hasattr(found, "commands"):
            break
        found = found.commands.get(word)
    return found is not None


def has_field(dotted: str) -> bool:
    section, name = dotted.split(".")
    found = AgentSettings.model_fields.get(section)
    kinds = () if found is None else (found.annotation, *get_args(found.annotation))
    return any(name in getattr(kind, "model_fields", {}) for kind in kinds)


def test_alerts_have_names_of_their_own_and_cover_what_can_go_wrong() -> None:
    names = [rule["alert"] for rule in RULES]
    assert len(names) == len(set(names))
    read = set().union(*(check_expression(rule["expr"]) for rule in RULES))
    worrying = {"gaps", "lag_seconds", "watermark_age_seconds", "store_refused", "unheld_segments", "held_bytes"}
    worrying |= {"yielded_segments_total", "corrupt_segments_total", "broker_reachable", "log_dirs_unreadable"}
    worrying |= {"logs_unreadable"}
    worrying |= {"fenced_partitions", "foreign_epochs_total"}
    worrying |= {"index_written_timestamp_seconds", "reloads_total", "truncated_logs_total", "failures_total"}
    worrying |= {"overdue_seconds", "stopped_partitions"}
    assert read >= {"up"} | {f"tidemark_agent_{name}" for name in worrying}


def test_the_dashboards_panels_are_apart_and_read_what_exists() -> None:
    ids = [panel["id"] for panel in PANELS]
    assert len(ids) == len(set(ids))
    cells = [cell for panel in PANELS for cell in cells_of(panel["gridPos"])]
    assert len(cells) == len(set(cells)), "two panels overlap"
    read = set()
    for panel in PANELS:
        for target in panel.get("targets", []):
            expression = target["expr"].replace("$__rate_interval", "5m").replace("$instance", ".*")
            read |= check_expression(expression)
            assert "instance=~" in target["expr"], "the chosen brokers only"
    ours = {name for name in SERVED if name.startswith("tidemark_agent_") and not name.endswith(PARTS[1:])}
    plain = {one.name for one in LINES if one.kind == "histogram"}
    assert ours - plain <= read, "each of our metrics is shown"


def cells_of(at: dict[str, int]) -> Iterator[tuple[int, int]]:
    assert at["x"] + at["w"] <= 24
    return ((at["x"] + right, at["y"] + down) for right in range(at["w"]) for down in range(at["h"]))


def directives(*paths: Path) -> dict[str, list[str]]:
    """What a unit and its drop-ins set: an empty value forgets what was set before."""
    found: dict[str, list[str]] = {}
    for path in paths:
        for line in path.read_text().splitlines():
            name, separator, value = line.partition("=")
            if separator and not line.startswith("#"):
                found[name] = [*found.get(name, []), value] if value else []
    return found


def test_the_unit_is_hardened() -> None:
    unit = directives(UNIT)
    for name in ("NoNewPrivileges", "PrivateTmp", "PrivateDevices", "ProtectHome", "RestrictSUIDSGID"):
        assert unit[name] == ["yes"], name
    assert unit["ProtectSystem"] == ["strict"]
    assert unit["CapabilityBoundingSet"] == unit["AmbientCapabilities"] == []
    assert unit["RestrictAddressFamilies"] == ["AF_INET AF_INET6 AF_UNIX"]
    assert "ReadWritePaths" not in unit
    assert unit["ReadOnlyPaths"] == ["/var/lib/kafka /etc/kafka"]
    assert (unit["User"], unit["SupplementaryGroups"]) == (["tidemark"], ["kafka"])


def test_the_unit_speaks_with_the_agent_as_the_agent_does() -> None:
    unit = directives(UNIT)
    drain: timedelta = AgentSettings.model_fields["drain"].default
    assert unit["Type"] == ["notify"]
    assert int(unit["TimeoutStopSec"][0]) > 3 * drain.total_seconds()
    assert unit["ExecReload"] == ["/bin/kill -HUP $MAINPID"]
    assert unit["Restart"] == ["on-failure"]
    assert unit["RestartPreventExitStatus"] == ["2"]
    assert unit["StateDirectory"] == ["tidemark"], "state_dir is /var/lib/tidemark"
    program, *command = unit["ExecStart"][0].split()
    assert program == "/opt/tidemark/agent/bin/tidemark-agent", "where the image has it, too"
    assert is_command("tidemark-agent", command)


def test_with_links_it_is_the_brokers_user_and_one_writable_path_holds_both() -> None:
    """A hard link from one mount into another fails, and each of these paths becomes a mount."""
    unit = directives(UNIT, LINKS)
    assert unit["User"][-1] == unit["Group"][-1] == "kafka"
    assert unit["SupplementaryGroups"] == []
    assert unit["ReadWritePaths"] == ["/var/lib/kafka"]
    assert unit["ReadOnlyPaths"] == ["/etc/kafka"]
    assert set(directives(LINKS)) == {"User", "Group", "SupplementaryGroups", "ReadOnlyPaths", "ReadWritePaths"}


def test_the_image_has_the_agents_environment_alone_and_runs_as_an_ordinary_user() -> None:
    text = (ROOT / "docker" / "agent.Dockerfile").read_text()
    assert set(re.findall(r"requirements/[a-z]+\.txt", text)) == {"requirements/build.txt", "requirements/agent.txt"}
    last = text.split("\nFROM ")[-1]
    assert re.findall(r"^COPY (.+)$", last, re.MULTILINE) == ["--from=build /opt/tidemark /opt/tidemark"]
    assert re.findall(r"^USER (.+)$", last, re.MULTILINE) == ["1000:1000"]
    assert "apt-get" not in text


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed here")
@pytest.mark.parametrize("links", [False, True], ids=["descriptors", "links"])
def test_systemd_takes_the_unit_and_finds_it_safe(tmp_path: Path, links: bool) -> None:
    unit = tmp_path / UNIT.name
    text = UNIT.read_text().replace("ExecStart=/opt/tidemark/agent/bin/tidemark-agent", "ExecStart=/bin/true")
    unit.write_text(text)
    if links:
        (tmp_path / LINKS.parent.name).mkdir()
        (tmp_path / LINKS.parent.name / LINKS.name).write_text(LINKS.read_text())
    assert said(["systemd-analyze", "verify", "--man=no", str(unit)]) == ""
    said(["systemd-analyze", "security", "--offline=yes", "--threshold=20", "--no-pager", str(unit)])
    unit.write_text(text.replace("NoNewPrivileges", "NoNewPrivilege"))
    assert "Unknown key" in said(["systemd-analyze", "verify", "--man=no", str(unit)])


def said(command: list[str]) -> str:
    """What a command that succeeds writes to standard error."""
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stderr


def test_the_clean_up_leaves_what_a_waiting_task_and_a_pending_run_need() -> None:
    """A quiet topic's task may have begun months ago, and ``airflow db clean`` spares none for being alive."""
    [tables] = re.findall(r"--tables (\S+)", (DEPLOY / "airflow-clean.sh").read_text())
    assert set(tables.split(",")) == {"asset_event", "dag_run", "import_error", "log"}


def test_the_clean_up_runs_once_a_day() -> None:
    unit = directives(DEPLOY / "systemd" / "tidemark-airflow-clean.service")
    assert unit["ExecStart"] == ["/opt/tidemark/bin/airflow-clean.sh"]
    assert directives(DEPLOY / "systemd" / "tidemark-airflow-clean.timer")["OnCalendar"] == ["*-*-* 03:30:00"]
