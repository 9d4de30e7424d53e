"""The chart of the agent: rendered by Helm's own engine, held against Kubernetes' schemas and the house's rules.

Nothing is started: there is no cluster here.
"""

from __future__ import annotations

import copy
import json
import os
import posixpath
import re
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml
from pydantic import TypeAdapter

from tests.support.paths import ROOT
from tidemark.config import Size
from tidemark.errors import ConfigError
from uploader_agent.broker.properties import parse_properties
from uploader_agent.settings import AgentSettings, load_settings

CHART = ROOT / "deploy" / "helm" / "tidemark-agent"
KUBERNETES = ("1.29.0", "1.37.0")
"""The oldest that the chart takes, and the newest whose schemas are installed."""
OURS = {"PodMonitor"}
"""Kinds that Kubernetes itself does not have."""
LEAST: dict[str, Any] = {
    "image": {"repository": "registry.example/tidemark-agent", "digest": "sha256:" + 64 * "0"},
    "config": {"raw": {"url": "s3://raw/tidemark"}},
}
SIDECAR = {"mode": "sidecar", "data": {"volume": "data"}, "broker": {"bootstrap": ""}}
FETCH: dict[str, Any] = {"mode": "fetch", "fetch": {"bootstrap": "kafka1:9092,[::1]:9092", "slots": 2}}
EVERYTHING = {
    "config": {"raw": {"url": "s3://raw/tidemark"}, "cluster": "prod", "hold": {"links": ["/var/lib/kafka/held"]}},
    "imagePullSecrets": [{"name": "registry"}],
    "credentials": {"existingSecret": "store"},
    "extraEnv": [{"name": "AWS_REGION", "value": "eu-central-1"}],
    "state": {"hostPath": "/var/lib/tidemark"},
    "supplementalGroups": [1001],
    "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/agent"}},
    "nodeSelector": {"kafka": "yes"},
    "tolerations": [{"key": "kafka", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "priorityClassName": "system-node-critical",
    "podAnnotations": {"a": "b"},
    "podLabels": {"c": "d"},
    "metrics": {"enabled": True, "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}}},
    "networkPolicy": {"metricsFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]},
}
MODES: dict[str, dict[str, Any]] = {
    "daemonset": {},
    "daemonset-everything": EVERYTHING,
    "sidecar": SIDECAR,
    "sidecar-everything": EVERYTHING | SIDECAR,
    "fetch": FETCH,
    "fetch-everything": EVERYTHING
    | {
        "mode": "fetch",
        "config": {"raw": {"url": "s3://raw/tidemark"}, "fetch": {"rack": "a", "largest_message": "16MiB"}},
        "fetch": FETCH["fetch"]
        | {"clientSecret": "kafka", "lease": "30s", "spool": {"size": "2Ti", "storageClass": "fast"}},
    },
    "fetch-without-volume": FETCH | {"fetch": FETCH["fetch"] | {"spool": {"emptyDir": True}}},
}

modes = pytest.mark.parametrize("values", MODES.values(), ids=MODES)


def rendered(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The chart's objects by kind, and by kind and name where a kind has several."""
    with helm_python.Chart.load(CHART) as chart:
        chart.validate_schema(LEAST | values)
        texts = chart.render(LEAST | values, name="east", namespace="kafka")
    found: dict[str, dict[str, Any]] = {}
    for path, text in texts.items():
        one = yaml.safe_load(text) if path.endswith(".yaml") else None
        if one:
            found[one["kind"] if one["kind"] not in found else f"{one['kind']} {one['metadata']['name']}"] = one
    return found


def patched(values: dict[str, Any]) -> dict[str, Any]:
    """The pod template of a broker's StatefulSet with the chart's patch, or the chart's own with its claims."""
    objects = rendered(values)
    if values.get("mode") != "sidecar":
        workload = objects["StatefulSet" if values.get("mode") == "fetch" else "DaemonSet"]["spec"]
        template: dict[str, Any] = workload["template"]
        for claim in workload.get("volumeClaimTemplates", []):
            name = claim["metadata"]["name"]
            template["spec"]["volumes"].append({"name": name, "persistentVolumeClaim": {"claimName": f"{name}-east-0"}})
        return template
    patch: dict[str, Any] = yaml.safe_load(objects["ConfigMap east-patch"]["data"]["patch.yaml"])["spec"]["template"]
    spec = patch["spec"]
    spec["containers"] = [{"name": "kafka", "image": "apache/kafka:4.3.1"}]
    spec["volumes"].append({"name": "data", "persistentVolumeClaim": {"claimName": "data"}})
    return patch


def agent_of(template: dict[str, Any]) -> dict[str, Any]:
    spec = template["spec"]
    [found] = [one for one in spec["containers"] + spec.get("initContainers", []) if one["name"] == "tidemark-agent"]
    return dict(found)


def validate(document: dict[str, Any], version: str) -> None:
    """Hold ``document`` against the schemas of a version, of whose fields it may have no others."""
    import kubernetes_validate  # seconds, which each process of tests would wait for

    kubernetes_validate.validate(document, version, strict=True)


@modes
def test_kubernetes_takes_what_is_rendered(values: dict[str, Any]) -> None:
    for one in [*rendered(values).values(), {"apiVersion": "v1", "kind": "Pod", **patched(values)}]:
        if one["kind"] not in OURS:
            for version in KUBERNETES:
                validate(one, version)


def test_a_wrong_field_is_seen() -> None:
    from kubernetes_validate import ValidationError

    broken = copy.deepcopy(rendered({})["DaemonSet"])
    broken["spec"]["template"]["spec"]["containers"][0]["readOnly"] = True
    with pytest.raises(ValidationError):
        validate(broken, KUBERNETES[0])


@modes
def test_helm_has_nothing_against_it(values: dict[str, Any]) -> None:
    report = helm_python.lint(CHART, LEAST | values, strict=True)
    assert (report["errors"], [one["error"] for one in report["messages"]]) == ([], ["icon is recommended"])


@modes
def test_the_agent_is_an_ordinary_user_that_writes_its_own_folders_only(values: dict[str, Any]) -> None:
    template = patched(values)
    agent = agent_of(template)
    security = agent["securityContext"]
    assert (security["runAsNonRoot"], security["runAsUser"], security["runAsGroup"]) == (True, 1000, 1000)
    assert security["readOnlyRootFilesystem"]
    assert not security["allowPrivilegeEscalation"]
    assert not security["privileged"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & template["spec"].keys()
    mounts = {one["mountPath"]: one for one in agent["volumeMounts"]}
    if values.get("mode") == "fetch":
        assert not any("hostPath" in volume for volume in template["spec"]["volumes"])
    else:
        assert mounts["/var/lib/kafka"]["readOnly"] == ("hold" not in values.get("config", {}))
    writable = {path for path, one in mounts.items() if not one.get("readOnly")}
    assert writable - {"/var/lib/kafka"} == {"/tmp", "/var/lib/tidemark"}  # noqa: S108 - a mount's path
    assert {one["name"] for one in mounts.values()} <= {one["name"] for one in template["spec"]["volumes"]}
    assert (
        "automountServiceAccountToken" not in template["spec"] or not template["spec"]["automountServiceAccountToken"]
    )
    assert set(agent["resources"]["limits"]) == {"memory"}


@modes
def test_the_agent_accepts_its_file(values: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = rendered(values)["ConfigMap"]["data"]
    (tmp_path / "agent.yaml").write_text(data["agent.yaml"])
    set_variables(monkeypatch, agent_of(patched(values)), slot="1")
    settings = load_settings(tmp_path / "agent.yaml")
    mounts = {one["mountPath"] for one in agent_of(patched(values))["volumeMounts"]}
    assert str(settings.state_dir) in mounts
    assert settings.http.host == ("0.0.0.0" if "metrics" in values else "127.0.0.1")  # noqa: S104 - in a pod
    if settings.broker is None:
        assert "server.properties" not in data
        return
    assert str(settings.broker.properties.parent) in mounts
    assert settings.broker.bootstrap == (None if values.get("mode") == "sidecar" else "192.0.2.7:9092")
    assert parse_properties(data["server.properties"])["log.dirs"].startswith("/var/lib/kafka/")


[CLIENT] = re.findall(r"```yaml\n(\{security_protocol.*)\n```", (ROOT / "docs" / "kubernetes.md").read_text())
"""The file ``client.yaml`` of docs/kubernetes.md."""


def set_variables(monkeypatch: pytest.MonkeyPatch, agent: dict[str, Any], *, slot: str) -> None:
    """Set the variables that Kubernetes gives to the agent."""
    given = {"metadata.labels['apps.kubernetes.io/pod-index']": slot, "client.yaml": CLIENT}
    for one in agent["env"]:
        if one["name"].startswith("TIDEMARK_AGENT__"):
            source = one.get("valueFrom", {})
            key = source.get("fieldRef", {}).get("fieldPath") or source.get("secretKeyRef", {}).get("key")
            monkeypatch.setenv(one["name"], given[key] if key else one["value"].replace("$(NODE_IP)", "192.0.2.7"))


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode.startswith("fetch")])
def test_a_pod_of_the_statefulset_is_a_slot(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    objects, agent = rendered(MODES[mode]), agent_of(patched(MODES[mode]))
    (tmp_path / "agent.yaml").write_text(objects["ConfigMap"]["data"]["agent.yaml"])
    set_variables(monkeypatch, agent, slot="1")
    settings = load_settings(tmp_path / "agent.yaml")
    fetch, spec = settings.fetch, objects["StatefulSet"]["spec"]
    assert fetch is not None
    assert (fetch.slot, fetch.slots, spec["replicas"]) == (1, 2, 2)
    assert spec["podManagementPolicy"] == "Parallel", "a slot that is not ready would keep the others from starting"
    assert fetch.spool.is_relative_to(settings.state_dir)
    assert 0 <= volume_size(spec) * 4 // 5 - fetch.spool_max < 1 << 20
    if mode == "fetch-everything":
        assert (fetch.client, fetch.rack, fetch.lease) == (yaml.safe_load(CLIENT), "a", timedelta(seconds=30))
        mounts = {one["mountPath"]: one["name"] for one in agent["volumeMounts"]}
        assert mounts[posixpath.dirname(str(fetch.client["ssl_cafile"]))] == "tidemark-client"
    assert ("startupProbe" in agent) == (fetch.lease is not None), "a standby is not alive yet"
    set_variables(monkeypatch, agent, slot="")  # a cluster that does not label the pods
    with pytest.raises(ConfigError, match=r"fetch\.slot"):
        load_settings(tmp_path / "agent.yaml")


def volume_size(spec: dict[str, Any]) -> int:
    """The size of the volume of a pod of a StatefulSet, which is a claim's or an emptyDir."""
    claims = [one["spec"]["resources"]["requests"]["storage"] for one in spec.get("volumeClaimTemplates", [])]
    volumes = {one["name"]: one for one in spec["template"]["spec"]["volumes"]}
    [size] = claims or [volumes["tidemark-state"]["emptyDir"]["sizeLimit"]]
    return int(TypeAdapter(Size).validate_python(f"{size}B"))


@modes
def test_probes_ask_what_a_restart_or_an_endpoint_depends_on(values: dict[str, Any]) -> None:
    agent = agent_of(patched(values))
    assert "127.0.0.1:9095/-/alive" in agent["livenessProbe"]["exec"]["command"][-1]
    if values.get("mode") == "sidecar":
        assert "readinessProbe" not in agent, "an outage of the store would take the broker out of its Service"
        assert agent["restartPolicy"] == "Always"
    else:
        assert "127.0.0.1:9095/-/ready" in agent["readinessProbe"]["exec"]["command"][-1]
    for probe in ("livenessProbe", "readinessProbe"):
        compile(agent.get(probe, agent["livenessProbe"])["exec"]["command"][-1], probe, "exec")


@modes
def test_a_monitor_and_a_policy_select_the_pods(values: dict[str, Any]) -> None:
    objects, labels = rendered(values), patched(values)["metadata"]["labels"]
    if "metrics" in values:
        assert objects["PodMonitor"]["spec"]["selector"]["matchLabels"].items() <= labels.items()
        [endpoint] = objects["PodMonitor"]["spec"]["podMetricsEndpoints"]
        assert endpoint["port"] in {one["name"] for one in agent_of(patched(values))["ports"]}
    if "NetworkPolicy" in objects:
        spec = objects["NetworkPolicy"]["spec"]
        assert spec["podSelector"]["matchLabels"].items() <= labels.items()
        assert bool(spec["ingress"]) == ("metrics" in values)
    assert ("NetworkPolicy" in objects) == (values.get("mode") != "sidecar"), "a broker's pod has its own"


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"mode": "deployment"}, "mode"),
        ({"config": {"raw": {}}}, "url"),
        ({"config": {"raw": {"url": "raw/tidemark"}}}, "url"),
        ({"config": {"raw": {"url": "s3://raw"}, "http": {"port": 1}}}, "config"),
        ({"config": {"raw": {"url": "s3://raw"}, "state_dir": "/s"}}, "config"),
        ({"image": {"repository": ""}}, "repository"),
        ({"image": {"repository": "r", "digest": "sha256:1"}}, "digest"),
        ({"user": 0}, "user"),
        ({"mode": "sidecar", "broker": {"bootstrap": ""}}, "volume"),
        ({"mode": "sidecar", "data": {"volume": "data"}}, "bootstrap"),
        ({"metrics": {"podMonitor": {"enabled": True}}}, "enabled"),
        ({"resource": {}}, "resource"),
        ({"mode": "fetch"}, "bootstrap"),
        (FETCH | {"fetch": {"bootstrap": "kafka:9093"}}, "networkPolicy.brokerPort: .* port 9092 only"),
        (FETCH | {"fetch": {"bootstrap": "kafka:90921"}}, "networkPolicy.brokerPort"),
        (FETCH | {"fetch": FETCH["fetch"] | {"slots": 0}}, "slots"),
        (FETCH | {"fetch": FETCH["fetch"] | {"spool": {"size": "10G"}}}, "size"),
        (FETCH | {"config": LEAST["config"] | {"broker": {}}}, "config"),
        (FETCH | {"config": LEAST["config"] | {"fetch": {"client": {}}}}, r"config\.fetch\.client: .* Secret"),
        (FETCH | {"config": LEAST["config"] | {"fetch": {"spool_max": "1TiB"}}}, r"config\.fetch\.spool_max"),
        (FETCH | {"config": LEAST["config"] | {"fetch": {"lease": "30s"}}}, r"config\.fetch\.lease"),
        (FETCH | {"fetch": FETCH["fetch"] | {"lease": "thirty"}}, "lease"),
        ({"config": LEAST["config"] | {"fetch": {}}}, "config"),
        ({"terminationGracePeriodSeconds": 30}, "terminationGracePeriodSeconds"),
    ],
)
def test_wrong_values_are_refused(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(helm_python.HelmError, match=named):
        rendered(wrong)


def test_every_value_is_described_and_has_a_default() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    readme = (CHART / "README.md").read_text()
    for path, one in leaves(schema["properties"]):
        assert one["description"], path
        if path not in {"global", "enabled", "nameOverride"}:
            assert f"`{path}`" in readme, path
            assert has(values, path.split(".")), path
    named = {path for path, _ in leaves(schema["properties"])}
    assert not [path for path in flat(values) if not any(path == one or path.startswith(f"{one}.") for one in named)]


def leaves(properties: dict[str, Any], prefix: str = "") -> list[tuple[str, dict[str, Any]]]:
    found: list[tuple[str, dict[str, Any]]] = []
    for name, one in properties.items():
        inner = one.get("properties")
        found += leaves(inner, f"{prefix}{name}.") if inner else [(f"{prefix}{name}", one)]
    return found


def has(values: Any, path: list[str]) -> bool:
    return not path or (path[0] in values and has(values[path[0]], path[1:]))


def flat(values: dict[str, Any], prefix: str = "") -> list[str]:
    found: list[str] = []
    for name, one in values.items():
        found += flat(one, f"{prefix}{name}.") if isinstance(one, dict) and one else [f"{prefix}{name}"]
    return found


def test_the_versions_are_the_packages() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert f'version = "{chart["appVersion"]}"' in (ROOT / "pyproject.toml").read_text()
    drain = AgentSettings.model_fields["drain"].default.total_seconds()
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert values["terminationGracePeriodSeconds"] > 3 * drain


def test_a_wrong_agent_file_is_the_agents_to_refuse(tmp_path: Path) -> None:
    data = rendered({"config": {"raw": {"url": "s3://raw"}, "include": ["["]}})["ConfigMap"]["data"]
    (tmp_path / "agent.yaml").write_text(data["agent.yaml"])
    with pytest.raises(ConfigError, match="include"):
        load_settings(tmp_path / "agent.yaml")


AIRFLOW = CHART.parent / "airflow"


def test_kubernetes_takes_sparks_accounts_and_executors() -> None:
    objects = list(yaml.safe_load_all((AIRFLOW / "spark-rbac.yaml").read_text()))
    for one in objects:
        for version in KUBERNETES:
            validate(one, version)
    names = {(one["kind"], one["metadata"]["name"]) for one in objects}
    [binding] = [one for one in objects if one["kind"] == "RoleBinding"]
    assert ("Role", binding["roleRef"]["name"]) in names
    assert all((one["kind"], one["name"]) in names for one in binding["subjects"])

    executor = yaml.safe_load((AIRFLOW / "executor.yaml").read_text())
    spec = executor["spec"]
    conf = dict(
        line.split(maxsplit=1)
        for line in (AIRFLOW / "spark-defaults.conf").read_text().splitlines()
        if line and not line.startswith("#")
    )
    [container] = spec["containers"]
    assert container["name"] == conf["spark.kubernetes.executor.podTemplateContainerName"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert ("ServiceAccount", conf["spark.kubernetes.authenticate.executor.serviceAccountName"]) in names
    container["image"] = conf["spark.kubernetes.executor.container.image"]  # Spark adds it
    validate(executor | {"metadata": {"name": "one"}}, KUBERNETES[0])


def test_airflows_values_fit_the_image_and_the_accounts() -> None:
    values = yaml.safe_load((AIRFLOW / "values.yaml").read_text())
    image = (ROOT / "docker" / "airflow.Dockerfile").read_text()
    assert f"apache-airflow=={values['airflowVersion']}" in (ROOT / "pyproject.toml").read_text()
    assert f"USER {values['uid']}:{values['gid']}" in image
    env = {one["name"]: one["value"] for one in values["env"]}
    prefix = "AIRFLOW__TIDEMARK__"
    assert f" {values['config']['core']['dags_folder']}\n" in image
    assert f" {env[f'{prefix}SPARK_JOBS']}\n" in image
    assert env[f"{prefix}SPARK_SUBMIT"] in image
    options = (ROOT / "plugins" / "tidemark_airflow" / "options.py").read_text()
    assert all(f'"{name.removeprefix(prefix).lower()}"' in options for name in env if name.startswith(prefix))
    [mount] = [one for one in values["volumeMounts"] if one["name"] == "tidemark-topics"]
    assert Path(env[f"{prefix}TOPICS"]).parent == Path(mount["mountPath"])
    assert "subPath" not in mount, "a pod would never see that the topics file has changed"
    pods = yaml.safe_load(values["extraEnv"])
    given = [*({"name": name, "value": value} for name, value in env.items()), *pods]
    container = {"name": "airflow", "image": "airflow", "env": given, "volumeMounts": values["volumeMounts"]}
    container |= {"securityContext": values["securityContexts"]["containers"]}
    spec = {
        "containers": [container],
        "volumes": values["volumes"],
        "securityContext": values["securityContexts"]["pod"],
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}, "spec": spec}
    validate(pod, KUBERNETES[0])
    accounts = [one["metadata"]["name"] for one in yaml.safe_load_all((AIRFLOW / "spark-rbac.yaml").read_text())]
    assert values["scheduler"]["serviceAccount"] == {"create": False, "name": accounts[0]}


@pytest.mark.skipif(
    "TIDEMARK_AIRFLOW_CHART" not in os.environ, reason="no package carries Airflow's chart: name a copy"
)
def test_airflows_chart_renders_with_the_values() -> None:
    values = yaml.safe_load((AIRFLOW / "values.yaml").read_text())
    with helm_python.Chart.load(os.environ["TIDEMARK_AIRFLOW_CHART"]) as chart:
        chart.validate_schema(values)
        texts = chart.render(values, name="airflow", namespace="airflow")
    objects = [one for text in texts.values() for one in yaml.safe_load_all(text) if isinstance(one, dict)]
    kinds = {one["metadata"]["name"]: one for one in objects if one["kind"] in {"Deployment", "StatefulSet"}}
    assert {"airflow-scheduler", "airflow-dag-processor", "airflow-triggerer", "airflow-api-server"} <= kinds.keys()
    for one in kinds.values():
        validate(one, KUBERNETES[0])
        containers = one["spec"]["template"]["spec"]["containers"]
        assert any("TIDEMARK_TOPICS" in str(container["env"]) for container in containers)


def test_a_chart_of_the_brokers_own_can_include_the_container(tmp_path: Path) -> None:
    """As docs/kubernetes.md shows it."""
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    [shown] = [one for one in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if ".Subcharts" in one]
    parent = tmp_path / "broker"
    (parent / "templates").mkdir(parents=True)
    shutil.copytree(CHART, parent / "charts" / "tidemark-agent")
    (parent / "Chart.yaml").write_text("{apiVersion: v2, name: broker, version: 1.0.0}")
    indented = "".join(f"  {line}\n" for line in shown.splitlines()).replace("nindent 4", "nindent 6")
    pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: broker}\nspec:\n  containers: [{name: kafka, image: kafka}]\n"
    (parent / "templates" / "pod.yaml").write_text(pod + indented.replace("nindent 2", "nindent 4"))
    with helm_python.Chart.load(parent) as chart:
        text = chart.render({"tidemark-agent": LEAST | SIDECAR}, name="east")["broker/templates/pod.yaml"]
    found = yaml.safe_load(text)
    assert agent_of(found)["restartPolicy"] == "Always"
    validate(found, KUBERNETES[0])
