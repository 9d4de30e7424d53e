"""docker-compose.yaml parses by the Compose specification and keeps the house's rules.

Docker itself is not needed: images are not pulled and nothing is started.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import urllib.request
import zipfile
from configparser import ConfigParser
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml
from compose_spec import PyCompose

from tests.support.paths import ROOT, env_bin, site_packages
from tidemark.endpoints import resolver_of
from tidemark.topics import load_topics
from uploader_agent.settings import load_settings

Service = dict[str, Any]

# Compose expands the YAML merge keys before it looks at the file, so do we.
RAW = yaml.safe_load((ROOT / "docker-compose.yaml").read_text())
SERVICES = cast("dict[str, Service]", RAW["services"])
ONE_SHOT = {"airflow-init"}
VARIABLE = re.compile(r"(?<!\$)\$\{([A-Z_]+)(:\?)?\}")
SECRET_NAME = re.compile(r"(?i)password$|secret|token|fernet|(access|api|private)[_-]?key")

services = pytest.mark.parametrize("name", sorted(SERVICES))


def variables(text: str) -> set[str]:
    return {name for name, _ in VARIABLE.findall(text)}


def test_it_follows_the_compose_specification() -> None:
    # The library refuses a tag beside a digest, which docker takes: the digest counts, the tag is for people.
    compose = PyCompose.from_json(re.sub(r":[\w.-]+(?=@sha256:)", "", json.dumps(RAW)))
    compose.validate()
    assert set(compose.service_names()) == set(SERVICES)


@services
def test_ports_are_published_on_this_machine_only(name: str) -> None:
    assert all(re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port) for port in SERVICES[name].get("ports", []))


@services
def test_everything_that_stays_up_has_a_health_check(name: str) -> None:
    assert ("healthcheck" in SERVICES[name]) == (name not in ONE_SHOT)


@services
def test_no_health_check_starts_airflow(name: str) -> None:
    """That takes seconds of a core, at each check of each service."""
    words = SERVICES[name].get("healthcheck", {}).get("test", [])
    assert not any(word.startswith("airflow ") for word in words)


@pytest.mark.parametrize("component", ["scheduler", "dag_processor", "triggerer"])
@pytest.mark.parametrize("status", ["healthy", "unhealthy", None])
def test_an_airflow_component_is_as_healthy_as_the_api_server_says(
    component: str, status: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = SERVICES[f"airflow-{component.replace('_', '-')}"]
    answer = {name: {"status": "healthy"} for name in ("scheduler", "dag_processor", "triggerer")}
    answer[component] = {"status": status}  # type: ignore[dict-item]  # null where the component was never there
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(nodename=service["hostname"]))
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: BytesIO(json.dumps(answer).encode()))
    with pytest.raises(SystemExit) as ended:
        exec(service["healthcheck"]["test"][-1])  # noqa: S102 - it is what the container runs
    assert ended.value.code == (status != "healthy")


@services
def test_what_is_waited_for_exists_and_can_be_waited_for(name: str) -> None:
    for needed, how in SERVICES[name].get("depends_on", {}).items():
        expected = "service_completed_successfully" if needed in ONE_SHOT else "service_healthy"
        assert how["condition"] == expected


@services
def test_images_are_pinned(name: str) -> None:
    image = SERVICES[name]["image"]
    assert re.match(r"v?\d+\.\d+", image.partition(":")[2]), image
    assert image.startswith("tidemark-") or re.search(r"@sha256:[0-9a-f]{64}$", image), image


@services
def test_no_service_is_privileged(name: str) -> None:
    service = SERVICES[name]
    assert not service.get("privileged")
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not {"pid", "ipc", "network_mode"} & set(service)
    assert not any("docker.sock" in volume for volume in service.get("volumes", []))


@services
def test_no_secret_is_written_down(name: str) -> None:
    for variable, value in SERVICES[name].get("environment", {}).items():
        if SECRET_NAME.search(variable) and not variable.endswith("_FILE"):
            assert VARIABLE.fullmatch(value), variable


def test_the_first_lines_make_the_secrets_start_all_and_let_the_watch_run() -> None:
    """`make test-containers` runs them."""
    lines = re.findall(r"^#   (\S.*)$", (ROOT / "docker-compose.yaml").read_text(), re.MULTILINE)
    make, up, unpause = (shlex.split(line) for line in lines)
    compose = ["docker", "compose", "--env-file", "docker/secrets/env"]
    assert make == ["python3", "docker/make_env.py"]
    assert up == [*compose, "up", "--build", "--wait"]
    assert unpause == [*compose, "exec", "airflow-scheduler", "airflow", "dags", "unpause", "tidemark_watch"]


@services
def test_tmp_is_executable_only_where_java_runs_jobs(name: str) -> None:
    service = SERVICES[name]
    options = [mount.partition(":")[2] for mount in service.get("tmpfs", [])]
    jobs = {"airflow-scheduler", "spark-connect", "spark-worker"}
    assert options == (["exec"] if name in jobs else [""] if service.get("read_only") else [])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that docker/make_env.py writes."""
    root = tmp_path_factory.mktemp("checkout")
    (root / "docker").mkdir()
    (root / "deploy").symlink_to(ROOT / "deploy")
    shutil.copy(ROOT / "docker" / "make_env.py", root / "docker")
    subprocess.run([sys.executable, root / "docker" / "make_env.py"], check=True, capture_output=True)
    return root / "docker" / "secrets"


def variables_of(made: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in (made / "env").read_text().splitlines())


def profiles_of(path: Path) -> dict[str, tuple[str, str]]:
    parser = ConfigParser()
    parser.read(path)
    return {
        name: (parser[name]["aws_access_key_id"], parser[name]["aws_secret_access_key"]) for name in parser.sections()
    }


def test_secrets_are_their_owners_alone(made: Path) -> None:
    assert made.stat().st_mode & 0o777 == 0o700
    assert (made / "env").stat().st_mode & 0o777 == 0o600
    is_ignored = ["git", "check-ignore", "--quiet", "docker/secrets/env"]
    assert subprocess.run(is_ignored, cwd=ROOT, check=False).returncode == 0


def test_what_is_made_is_kept(made: Path) -> None:
    before = {path.name: path.read_bytes() for path in made.iterdir()}
    again = subprocess.run([sys.executable, made.parent / "make_env.py"], check=False, capture_output=True, text=True)
    assert again.returncode == 1
    assert f"{made} exists and is kept" in again.stderr
    assert {path.name: path.read_bytes() for path in made.iterdir()} == before


def test_services_get_what_is_made_as_files(made: Path) -> None:
    """Compose makes no file out of ``content`` in a service that is read-only."""
    assert "configs" not in RAW
    named = {name: secret["file"] for name, secret in RAW["secrets"].items()}
    assert named == {name: f"./docker/secrets/{name}" for name in named}
    assert {*named, "env"} == {path.name for path in made.iterdir()}
    [of_store] = SERVICES["store"]["secrets"]
    assert f"-s3.config={of_store['target']}" in SERVICES["store"]["command"]


def test_each_role_of_the_store_has_its_policy_of_deploy_and_keys_of_its_own(made: Path) -> None:
    written = json.loads((made / "store-identities").read_text())
    policies = {policy["name"]: json.loads(policy["content"]) for policy in written["policies"]}
    assert set(policies) == {"agent", "maintenance", "page", "retention", "watch", "worker"}
    for name, policy in policies.items():
        text = (ROOT / "deploy" / "policies" / f"{name}.json").read_text()
        places = re.findall(r"<\w+>", text)
        assert places
        shape = re.escape(json.dumps(json.loads(text)))
        for place in set(places):
            shape = shape.replace(place, r"[\w-]+")
        assert re.fullmatch(shape, json.dumps(policy)), name
    roles = {identity["name"]: identity.get("policyNames") for identity in written["identities"]}
    assert roles == {"admin": None, **{name: [name] for name in policies}}
    keys = {
        identity["name"]: (credential["accessKey"], credential["secretKey"])
        for identity in written["identities"]
        for credential in identity["credentials"]
    }
    assert len({value for pair in keys.values() for value in pair}) == 2 * len(roles)
    given = {role: pair for path in made.glob("credentials-*") for role, pair in profiles_of(path).items()}
    variables = variables_of(made)
    for role in ("agent", "worker"):
        given[role] = (variables[f"STORE_{role.upper()}_ACCESS_KEY"], variables[f"STORE_{role.upper()}_SECRET_KEY"])
    assert given == {name: pair for name, pair in keys.items() if name != "admin"}


def test_the_policies_are_for_the_places_that_agent_and_pipeline_use(made: Path) -> None:
    text = (made / "store-identities").read_text()
    deployment = load_topics(ROOT / "include" / "topics.yaml")
    agent = load_settings(ROOT / "docker" / "agent.yaml")
    raw, lake = (url.replace("s3://", "arn:aws:s3:::") for url in (deployment.raw.url, deployment.lake))
    properties = (ROOT / "docker" / "kafka" / "server.properties").read_text()
    [broker] = re.findall(r"^node\.id=(\d+)$", properties, re.MULTILINE)
    assert f"{raw}/_heads/{agent.cluster}/{broker}.json" in text
    assert f"{lake}/_tidemark/" in text
    assert "<" not in text


def test_each_of_airflows_services_has_the_keys_of_its_roles_alone(made: Path) -> None:
    given = {}
    for name, service in SERVICES.items():
        for secret in service.get("secrets", []) if name.startswith("airflow-") else []:
            assert secret["target"] == service["environment"]["AWS_SHARED_CREDENTIALS_FILE"]
            given[name] = list(profiles_of(made / secret["source"]))
            assert service["environment"]["AWS_PROFILE"] == given[name][0]
        assert not name.startswith("airflow-") or not {"AWS_ACCESS_KEY_ID"} & service["environment"].keys()
    assert given == {
        "airflow-api-server": ["page"],
        "airflow-scheduler": ["maintenance", "retention"],
        "airflow-triggerer": ["watch"],
    }
    assert SERVICES["airflow-scheduler"]["environment"]["AIRFLOW__TIDEMARK__RETENTION_PROFILE"] == "retention"


def test_every_variable_is_required_and_has_a_value_of_its_own(made: Path) -> None:
    text = (ROOT / "docker-compose.yaml").read_text()
    assert all(required for _, required in VARIABLE.findall(text))
    values = variables_of(made)
    assert set(values) == variables(text)
    assert len(set(values.values())) == len(values)
    assert all(re.fullmatch(r"[\w-]{20,}=*", value) for value in values.values())
    assert len(base64.urlsafe_b64decode(values["AIRFLOW_FERNET_KEY"])) == 32


def test_the_agent_reads_the_brokers_disk_and_cannot_write_to_it() -> None:
    [data] = [volume for volume in SERVICES["agent"]["volumes"] if volume.startswith("kafka-data:")]
    broker = SERVICES["kafka"]["volumes"]
    assert data.endswith(":ro")
    assert data.removesuffix(":ro") in broker
    log_dirs = f"log.dirs={data.split(':')[1]}"
    assert log_dirs in (ROOT / "docker" / "kafka" / "server.properties").read_text().splitlines()


@pytest.mark.parametrize("path", sorted((ROOT / "docker").glob("*.Dockerfile")), ids=lambda path: path.name)
def test_images_are_built_from_pinned_parts_and_run_as_an_ordinary_user(path: Path) -> None:
    text = path.read_text()
    assert set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) == {"${BASE}"}
    bases = re.findall(r"^ARG BASE=(\S+)", text, re.MULTILINE)
    assert len(bases) == 1
    assert all(re.search(r":\d+\.\d+\.\d+-.*@sha256:[0-9a-f]{64}$", base) for base in bases)
    assert text.count("--require-hashes") == text.count("pip install --no-cache-dir") + text.count("uv pip sync")
    assert re.findall(r"^USER (\S+)", text, re.MULTILINE)[-1] not in {"root", "0"}
    for source in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE):
        assert all((ROOT / part).exists() for part in source.split()), source


@pytest.mark.parametrize("path", sorted((ROOT / "docker").glob("*.Dockerfile")), ids=lambda path: path.name)
def test_hadolint_has_nothing_against_it(path: Path) -> None:
    lint = [str(env_bin("dev", "hadolint")), "--no-color", "-"]
    done = subprocess.run(lint, input=path.read_text(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    wrong = path.read_text().replace("USER ", "MAINTAINER ")
    assert "DL4000" in subprocess.run(lint, input=wrong, capture_output=True, text=True, check=False).stdout


def test_what_images_copy_is_in_the_context() -> None:
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for path in (ROOT / "docker").glob("*.Dockerfile"):
        for source in re.findall(r"^COPY (?!--from)(.+) \S+$", path.read_text(), re.MULTILINE):
            for part in source.split():
                assert any(part == one or part.startswith(f"{one}/") for one in allowed), f"{path.name}: {part}"


def test_an_executor_of_kubernetes_gets_what_spark_says(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    java.chmod(0o755)
    names = ("DRIVER_URL", "EXECUTOR_ID", "EXECUTOR_CORES", "APPLICATION_ID", "EXECUTOR_POD_IP", "RESOURCE_PROFILE_ID")
    given = {f"SPARK_{name}": name.lower() for name in (*names, "EXECUTOR_POD_NAME", "EXECUTOR_MEMORY")}
    options = {f"SPARK_JAVA_OPT_{number}": f"-Dn={number} and blanks" for number in range(11)}
    done = subprocess.run(
        ["/bin/bash", ROOT / "docker" / "spark-entrypoint.sh", "executor"],
        env={"PATH": "/usr/bin:/bin", "JAVA_HOME": str(tmp_path), "SPARK_HOME": "/spark", **given, **options},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert lines[:11] == list(options.values())
    backend = lines.index("org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend")
    pairs = dict(zip(lines[backend + 1 :: 2], lines[backend + 2 :: 2], strict=True))
    assert pairs["--driver-url"] == "driver_url"
    assert set(pairs.values()) == {name.lower() for name in (*names, "EXECUTOR_POD_NAME")}
    [jar] = site_packages("spark").glob("pyspark/jars/spark-kubernetes_*.jar")
    assert f"{lines[backend].replace('.', '/')}.class" in zipfile.ZipFile(jar).namelist()


@services
def test_topics_files_are_mounted_with_their_folder(name: str) -> None:
    """An editor replaces the file, and a mount of the file alone would not see the new one."""
    topics = Path(SERVICES[name].get("environment", {}).get("AIRFLOW__TIDEMARK__TOPICS", ""))
    mounts = dict(volume.split(":")[:2] for volume in SERVICES[name].get("volumes", []) if ":" in volume)
    assert topics == Path() or mounts["./include"] == str(topics.parent)


def test_every_bind_mount_is_in_the_repository() -> None:
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            if volume.startswith("./"):
                assert (ROOT / volume.split(":")[0]).exists(), volume


def test_agent_and_pipeline_meet_at_the_same_place() -> None:
    agent = load_settings(ROOT / "docker" / "agent.yaml")
    deployment = load_topics(ROOT / "include" / "topics.yaml")
    assert {topic.cluster for topic in deployment.topics} == {agent.cluster}
    assert resolver_of(agent.raw).default() == resolver_of(deployment.raw).default()
    assert agent.broker is not None
    assert str(agent.broker.properties) == "/etc/kafka/server.properties"


def test_the_workflows_actions_stand_at_commits() -> None:
    for path in (ROOT / ".github" / "workflows").iterdir():
        used = re.findall(r"uses: (.+)", path.read_text())
        assert used
        assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", one) for one in used), used
