"""The chart in a real API server: Helm installs, upgrades, rolls back and uninstalls it; pods are admitted or refused.

There is no node, so pods stay pending. Each test has a namespace of its own.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kubernetes import programs
from tests.kubernetes.cluster import NODE, Cluster, Object, Refused, running_cluster
from tests.support.paths import ROOT
from tests.support.waiting import wait_until
from tests.test_helm import AIRFLOW, CHART, CLIENT, EVERYTHING, LEAST, MODES, SIDECAR, rendered

pytestmark = [
    pytest.mark.timeout(7200),  # the programs are built before the first test
    pytest.mark.skipif(programs.missing() is not None, reason=f"{programs.missing()}"),
]

DIGEST = LEAST["image"]["digest"]
UNINSTALL = "helm uninstall east --namespace kafka"
PAGE = (ROOT / "docs" / "kubernetes.md").read_text()
BROKER: Object = {
    "apiVersion": "apps/v1",
    "kind": "StatefulSet",
    "metadata": {"name": "kafka"},
    "spec": {
        "serviceName": "kafka",
        "podManagementPolicy": "Parallel",  # or else a pod that is not ready, as all are here, would never be replaced
        "selector": {"matchLabels": {"app": "kafka"}},
        "template": {
            "metadata": {"labels": {"app": "kafka"}},
            "spec": {
                "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
                "containers": [
                    {
                        "name": "kafka",
                        "image": "apache/kafka:4.3.1",
                        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                        "volumeMounts": [{"name": "data", "mountPath": "/var/lib/kafka"}],
                    }
                ],
            },
        },
        "volumeClaimTemplates": [
            {
                "metadata": {"name": "data"},
                "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
            }
        ],
    },
}
"""A broker's StatefulSet that *restricted* takes."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster"), scheduler=False) as cluster:
        cluster.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "labels": {"kafka": "east"}}})
        yield cluster


def schema(**fields: Any) -> Object:
    return {"type": "object", "properties": fields}


LABELS: Object = {"type": "object", "additionalProperties": {"type": "string"}}
TEXT: Object = {"type": "string"}
ENDPOINTS: Object = {"type": "array", "items": schema(port=TEXT, path=TEXT, interval=TEXT)}
POD_MONITORS: Object = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "podmonitors.monitoring.coreos.com"},
    "spec": {
        "group": "monitoring.coreos.com",
        "names": {
            "kind": "PodMonitor",
            "plural": "podmonitors",
            "singular": "podmonitor",
            "listKind": "PodMonitorList",
        },
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": schema(
                        spec=schema(selector=schema(matchLabels=LABELS), podMetricsEndpoints=ENDPOINTS)
                    )
                },
            }
        ],
    },
}
"""The fields that the chart uses of the kind that Prometheus' operator brings along."""


@pytest.fixture
def pod_monitors(cluster: Cluster) -> Iterator[str]:
    """The name of the kind, which exists until the test ends."""
    name = POD_MONITORS["metadata"]["name"]
    cluster.apply(POD_MONITORS)
    cluster.kubectl("wait", "--for=condition=Established", f"crd/{name}")
    yield name
    cluster.kubectl("delete", "crd", name)


def documented(heading: str, folder: Path) -> tuple[Object, list[str]]:
    """The values that docs/kubernetes.md shows below a heading, and the commands, whose ``deploy`` is in ``folder``."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    values = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)[0].replace("sha256:…", DIGEST))
    commands = [line for block in re.findall(r"```sh\n(.*?)```", section, re.DOTALL) for line in block.splitlines()]
    (folder / "deploy").symlink_to(ROOT / "deploy")
    (folder / "east.yaml").write_text(json.dumps(values))
    return values, commands


def execute(cluster: Cluster, command: str, namespace: str, folder: Path) -> str:
    """Run a command of the docs in another namespace and return its output; it must warn of nothing."""
    output = cluster.run("sh", "-c", command.replace("--namespace kafka", f"--namespace {namespace}"), cwd=folder)
    assert output.warnings == ""
    return output.text


def pods(cluster: Cluster, namespace: str) -> list[Object]:
    """The pods of a namespace that are to stay."""
    return [pod for pod in cluster.objects("pods", namespace) if "deletionTimestamp" not in pod["metadata"]]


def await_pod(cluster: Cluster, namespace: str, config: str) -> Object:
    """The one pod whose agent has the file with this checksum."""

    def updated() -> list[Object]:
        return [
            pod
            for pod in pods(cluster, namespace)
            if pod["metadata"].get("annotations", {}).get("tidemark/config") == config
        ]

    wait_until(lambda: len(updated()) == 1 == len(pods(cluster, namespace)), what=f"the one pod with {config}")
    return updated()[0]


def checksum(cluster: Cluster, kind: str, name: str, namespace: str) -> str:
    """The annotation by which a changed file makes new pods."""
    template = cluster.get(kind, name, namespace)["spec"]["template"]
    return str(template["metadata"]["annotations"]["tidemark/config"])


def test_helm_installs_upgrades_rolls_back_and_uninstalls_a_daemonset(cluster: Cluster, tmp_path: Path) -> None:
    space = "lifecycle"
    cluster.make_namespace(space, "privileged")
    values, [install] = documented("A DaemonSet", tmp_path)

    execute(cluster, install, space, tmp_path)
    kinds = {"configmap", "daemonset.apps", "networkpolicy.networking.k8s.io", "serviceaccount"}
    assert {f"{kind}/east" for kind in kinds} <= cluster.contents(space)
    first = checksum(cluster, "daemonset", "east", space)
    pod = await_pod(cluster, space, first)
    file = cluster.get("configmap", "east", space)["data"]

    upgrade = install.replace("helm install", "helm upgrade")
    execute(cluster, upgrade, space, tmp_path)
    assert cluster.get("daemonset", "east", space)["metadata"]["generation"] == 1, "nothing has changed"

    values["config"]["freshness"] = {".*": "5m"}
    (tmp_path / "east.yaml").write_text(json.dumps(values))
    execute(cluster, upgrade, space, tmp_path)
    second = checksum(cluster, "daemonset", "east", space)
    assert second != first
    assert await_pod(cluster, space, second)["metadata"]["uid"] != pod["metadata"]["uid"]
    assert yaml.safe_load(cluster.get("configmap", "east", space)["data"]["agent.yaml"])["freshness"] == {".*": "5m"}

    execute(cluster, "helm rollback east 1 --namespace kafka", space, tmp_path)
    await_pod(cluster, space, first)
    assert cluster.get("configmap", "east", space)["data"] == file

    execute(cluster, UNINSTALL, space, tmp_path)
    wait_until(lambda: cluster.contents(space) == set(), what="all of the release to be gone")


@pytest.mark.parametrize(
    ("standard", "mode", "reason"),
    [
        ("baseline", "daemonset", 'hostPath volumes (volume "kafka-data")'),
        ("baseline", "daemonset-everything", 'hostPath volumes (volumes "tidemark-state", "kafka-data")'),
        (
            "restricted",
            "daemonset",
            'restricted volume types (volume "kafka-data" uses restricted volume type "hostPath")',
        ),
        (
            "restricted",
            "daemonset-everything",
            'restricted volume types (volumes "tidemark-state", "kafka-data" use restricted volume type "hostPath")',
        ),
    ],
)
def test_a_daemonset_needs_privileged_for_its_host_paths_alone(
    cluster: Cluster, pod_monitors: str, standard: str, mode: str, reason: str
) -> None:
    space = f"{standard}-{mode}"
    cluster.make_namespace(space, standard)
    values = LEAST | MODES[mode] | {"nodeSelector": {"kafka": "east"}}
    output = cluster.helm("install", "east", CHART, "--namespace", space, "--values", "-", given=values)
    expected = f'PodSecurity "{standard}:latest": {reason}'
    [warning] = output.warnings.splitlines()
    assert warning.replace("\\", "").endswith(f'"Warning: would violate {expected}"')
    wait_until(lambda: bool(cluster.events("FailedCreate", space)), what="a pod to be refused")
    assert all(message.endswith(f"violates {expected}") for message in cluster.events("FailedCreate", space))
    assert cluster.objects("pods", space) == []


@pytest.mark.parametrize("mode", MODES)
def test_the_api_server_takes_all_objects_and_warns_of_nothing(cluster: Cluster, pod_monitors: str, mode: str) -> None:
    space = f"strict-{mode}"
    cluster.make_namespace(space, "privileged")
    objects = rendered(MODES[mode])
    assert ("PodMonitor" in objects) == mode.endswith("everything")
    cluster.check(*objects.values(), namespace=space)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"readOnly": True}, "readOnly: field not declared in schema"),
        ({"nodeSelector": {"beta.kubernetes.io/os": "linux"}}, "deprecated"),
    ],
)
def test_an_unknown_or_deprecated_field_is_seen(cluster: Cluster, wrong: Object, named: str) -> None:
    broken = rendered({})["DaemonSet"]
    broken["spec"]["template"]["spec"] |= wrong
    with pytest.raises(Refused, match=named):
        cluster.check(broken, namespace="default")


def test_a_pod_monitor_needs_the_operators_kind(cluster: Cluster, request: pytest.FixtureRequest) -> None:
    space = "monitored"
    cluster.make_namespace(space, "privileged")
    values = LEAST | {"metrics": EVERYTHING["metrics"]}
    install = ("install", "east", CHART, "--namespace", space, "--values", "-")
    with pytest.raises(Refused, match='no matches for kind "PodMonitor"'):
        cluster.helm(*install, given=values)
    assert cluster.contents(space) == set()
    kind = request.getfixturevalue("pod_monitors")
    assert cluster.helm(*install, given=values).warnings == ""
    labels = cluster.get(kind, "east", space)["spec"]["selector"]["matchLabels"]
    template = cluster.get("daemonset", "east", space)["spec"]["template"]
    assert labels.items() <= template["metadata"]["labels"].items()


def agent_in(pod: Object) -> Object:
    [agent] = [agent for agent in pod["spec"]["initContainers"] if agent["name"] == "tidemark-agent"]
    return dict(agent)


def test_the_broker_of_a_restricted_namespace_gets_a_sidecar_and_loses_it(cluster: Cluster, tmp_path: Path) -> None:
    space = "sidecar"
    cluster.make_namespace(space, "restricted")
    cluster.apply(BROKER, namespace=space)
    wait_until(lambda: len(pods(cluster, space)) == 1, what="the broker's pod")
    before = cluster.get("statefulset", "kafka", space)["spec"]["template"]
    values, commands = documented("In the broker's own pod", tmp_path)
    install, *patch = commands

    for command in (install, *patch):
        execute(cluster, command, space, tmp_path)
    first = checksum(cluster, "statefulset", "kafka", space)
    pod = await_pod(cluster, space, first)
    assert agent_in(pod)["restartPolicy"] == "Always"
    assert {"name": "data", "mountPath": "/var/lib/kafka", "readOnly": True} in agent_in(pod)["volumeMounts"]
    for command in patch:
        execute(cluster, command, space, tmp_path)
    assert cluster.get("statefulset", "kafka", space)["metadata"]["generation"] == 2, "the patch was there"

    values["config"]["freshness"] = {".*": "5m"}
    (tmp_path / "east.yaml").write_text(json.dumps(values))
    for command in (install.replace("helm install", "helm upgrade"), *patch):
        execute(cluster, command, space, tmp_path)
    second = checksum(cluster, "statefulset", "kafka", space)
    assert second != first
    await_pod(cluster, space, second)
    assert cluster.events("FailedCreate", space) == []

    for command in (*(command.replace("patch\\.yaml", "remove\\.yaml") for command in patch), UNINSTALL):
        execute(cluster, command, space, tmp_path)
    assert cluster.get("statefulset", "kafka", space)["spec"]["template"] == before
    broker = {"statefulset.apps/kafka", "pod/kafka-0", "persistentvolumeclaim/data-kafka-0"}
    wait_until(lambda: unversioned(cluster.contents(space)) == broker, what="all of the release to be gone")


def test_slots_of_a_restricted_namespace_end_before_their_number_changes(cluster: Cluster, tmp_path: Path) -> None:
    space = "fetch"
    cluster.make_namespace(space, "restricted")
    values, [secret, install] = documented("Fetching", tmp_path)
    for name, text in {"client.yaml": CLIENT, "ca.crt": "PEM"}.items():
        (tmp_path / name).write_text(text)
    for command in (secret, install):
        execute(cluster, command, space, tmp_path)
    index = "apps.kubernetes.io/pod-index"
    wait_until(
        lambda: {pod["metadata"]["labels"][index] for pod in pods(cluster, space)} == {"0", "1"}, what="the slots"
    )
    wait_until(
        lambda: cluster.get("statefulset", "east", space)["status"].get("replicas") == 2, what="the slots to be counted"
    )
    assert cluster.events("FailedCreate", space) == []

    upgrade = install.replace("helm install", "helm upgrade")
    values["config"]["freshness"] = {".*": "5m"}
    (tmp_path / "east.yaml").write_text(json.dumps(values))
    execute(cluster, upgrade, space, tmp_path)
    values["fetch"]["slots"] = 3
    (tmp_path / "east.yaml").write_text(json.dumps(values))
    with pytest.raises(Refused, match=r"fetch\.slots: agents of 2 slots are running"):
        execute(cluster, upgrade, space, tmp_path)

    [uninstall] = re.findall(r"`(helm uninstall east .*--cascade foreground --wait)`", PAGE)
    execute(cluster, uninstall, space, tmp_path)
    claims = {f"persistentvolumeclaim/tidemark-state-east-{slot}" for slot in range(2)}
    assert cluster.contents(space) == {*claims, "secret/kafka-client"}
    execute(cluster, install, space, tmp_path)
    wait_until(lambda: len(pods(cluster, space)) == 3, what="three slots")


def unversioned(names: set[str]) -> set[str]:
    return {name for name in names if not name.startswith("controllerrevision")}


def test_a_chart_of_the_brokers_own_brings_the_sidecar(cluster: Cluster, tmp_path: Path) -> None:
    space = "parent"
    cluster.make_namespace(space, "restricted")
    shown = next(text for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) if ".Subcharts" in text)
    folder = tmp_path / "broker"
    (folder / "templates").mkdir(parents=True)
    shutil.copytree(CHART, folder / "charts" / "tidemark-agent")
    (folder / "Chart.yaml").write_text("{apiVersion: v2, name: broker, version: 1.0.0}")
    shown = shown.replace("nindent 4", "nindent 10").replace("nindent 2", "nindent 8")
    template, spec, rest = yaml.safe_dump(BROKER).partition("    spec:\n")
    included = "".join(f"      {line}\n" for line in shown.splitlines())
    (folder / "templates" / "broker.yaml").write_text(f"{template}{spec}{included}{rest}")
    output = cluster.helm(
        *("install", "east", folder, "--namespace", space, "--values", "-"), given={"tidemark-agent": LEAST | SIDECAR}
    )
    assert output.warnings == ""
    wait_until(lambda: len(pods(cluster, space)) == 1, what="the broker's pod")
    [pod] = pods(cluster, space)
    assert agent_in(pod)["restartPolicy"] == "Always"


def test_sparks_accounts_may_do_what_the_docs_say_and_nothing_else(cluster: Cluster) -> None:
    space = "airflow"
    cluster.make_namespace(space, "restricted")
    cluster.kubectl(
        *("apply", "--validate=strict", "--warnings-as-errors", "--namespace", space),
        *("--filename", AIRFLOW / "spark-rbac.yaml"),
    )

    def may(account: str, *action: str, namespace: str = space) -> bool:
        user = f"system:serviceaccount:{space}:{account}"
        try:
            cluster.kubectl("auth", "can-i", *action, "--as", user, "--namespace", namespace)
        except Refused:
            return False
        return True

    assert all(may("tidemark-jobs", verb, "pods") for verb in ("create", "delete", "watch"))
    assert not may("tidemark-jobs", "create", "pods", namespace="default")
    refused = [("get", "secrets"), ("create", "pods", "--subresource=exec"), ("create", "jobs"), ("create", "services")]
    assert not any(may("tidemark-jobs", *action) for action in refused)
    assert not any(may("tidemark-executors", *action) for action in [*refused, ("get", "pods"), ("list", "configmaps")])
    executor = yaml.safe_load((AIRFLOW / "executor.yaml").read_text())
    executor["metadata"] = {**executor.get("metadata", {}), "name": "executor"}
    executor["spec"]["containers"][0]["image"] = "registry.example/tidemark-spark"
    executor["spec"]["serviceAccountName"] = "tidemark-executors"
    cluster.check(executor, namespace=space)
