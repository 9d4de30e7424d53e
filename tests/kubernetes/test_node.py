"""The agent in pods of a real node: it uploads what a broker on the node has, and one in its own pod, or fetches it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kafka import KafkaProducer
from kafka.admin import NewTopic

from tests.containers import engine
from tests.kubernetes import node, programs
from tests.kubernetes.cluster import NODE, Cluster, Object, running_cluster
from tests.kubernetes.images import KAFKA, REPOSITORY, TAG, export_images
from tests.support.kafka import KafkaCluster
from tests.support.kafka_broker import connect
from tests.support.kafka_config import Properties
from tests.support.paths import STATE
from tests.support.ports import free_port
from tests.support.s3 import S3Server
from tests.support.waiting import wait_until
from tests.test_helm import CHART
from tests.uploader_agent.real import SMALL
from tidemark.formats.keys import Endpoint, PartitionKeys, SegmentName
from tidemark.formats.raw.manifest import SegmentManifest
from tidemark.formats.raw.watermark import parse
from uploader_agent.disk.log_dirs import find_segments

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

MISSING = programs.missing() or engine.missing() or node.missing()
pytestmark = [
    pytest.mark.timeout(7200),  # programs and images are built before the first test
    pytest.mark.skipif(MISSING is not None, reason=f"{MISSING}"),
]

TOPIC = "orders"
FOLDER = STATE / "kubernetes"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    FOLDER.mkdir(parents=True, exist_ok=True)
    archive = FOLDER / "images.tar"
    export_images(archive)
    with (
        running_cluster(tmp_path_factory.mktemp("cluster"), scheduler=True) as cluster,
        node.running_node(cluster, FOLDER / "node", archive, {"kafka": "east"}),
    ):
        yield cluster


@pytest.fixture(scope="module")
def store(starts_s3: None, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A store at the node's address, which is there as long as the node is."""
    with S3Server(tmp_path_factory.mktemp("store"), buckets=["raw"], host=node.ADDRESS) as store:
        yield store


def make_namespace(cluster: Cluster, store: S3Server, name: str, standard: str) -> None:
    """A namespace with the Secret that has the keys of the store."""
    cluster.make_namespace(name, standard)
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "store"}, "stringData": store.env()}
    cluster.apply(secret, namespace=name)


def values(store: S3Server, **more: Any) -> Object:
    """The chart's values for this machine's image and store."""
    return {
        "image": {"repository": REPOSITORY, "tag": TAG, "pullPolicy": "Never"},
        "config": {"raw": {"url": "s3://raw/tidemark"}, "store": {"path_style": True}},
        "credentials": {"existingSecret": "store"},
        **more,
    }


def produce(bootstrap: str, count: int, size: int = 400) -> None:
    """Append records of ``size`` bytes to the topic's one partition."""
    producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all", linger_ms=1, batch_size=2048)
    for number in range(count):
        producer.send(TOPIC, b"%d:" % number + bytes(size))
    producer.flush()
    producer.close()


def await_upload(store: S3Server, cluster_id: str, folder: Path) -> int:
    """Wait until the store has all rotated segments of a partition's folder, byte by byte; the end of their offsets."""
    client, keys = store.client(), PartitionKeys(Endpoint("s3://raw", "tidemark"), cluster_id, TOPIC, 0)
    segments = find_segments(folder)
    rotated, end = [segment.base_offset for segment in segments if segment.rotated], segments[-1].base_offset
    assert rotated
    wait_until(lambda: uploaded(client, keys) == end, what=f"offsets up to {end} in the store")
    for base in rotated:
        name = SegmentName(base)
        manifest = SegmentManifest.from_bytes(body(client, keys.manifest(name)), keys.manifest(name))
        log = body(client, keys.segment(name, "log"))
        assert log == (folder / f"{base:020d}.log").read_bytes()
        assert (manifest.state, manifest.objects[name.file("log")].size) == ("whole", len(log))
    return end


def uploaded(client: S3Client, keys: PartitionKeys) -> int:
    """The end of the offsets that are in the store without a gap."""
    listed = client.list_objects_v2(Bucket="raw", Prefix=keys.watermark).get("Contents")
    watermark = parse(body(client, keys.watermark), keys.watermark)[1] if listed else None
    return watermark.next_offset if watermark else 0


def body(client: S3Client, key: str) -> bytes:
    return client.get_object(Bucket="raw", Key=key)["Body"].read()


def pod_name(cluster: Cluster, namespace: str) -> str:
    [pod] = [pod for pod in cluster.objects("pods", namespace) if "deletionTimestamp" not in pod["metadata"]]
    return str(pod["metadata"]["name"])


def broker_on_node(folder: Path) -> tuple[KafkaCluster, int]:
    """A broker that pods reach at the node's address, and its port."""
    kafka = KafkaCluster(folder)
    [broker] = kafka.brokers
    port = free_port()
    broker.properties["listeners"] += f",NODE://{node.ADDRESS}:{port}"
    broker.properties["advertised.listeners"] += f",NODE://{node.ADDRESS}:{port}"
    broker.properties["listener.security.protocol.map"] += ",NODE:PLAINTEXT"
    return kafka, port


def test_a_daemonset_uploads_what_the_nodes_broker_rotates(
    starts_kafka: None, cluster: Cluster, store: S3Server, tmp_path: Path
) -> None:
    space = "daemonset"
    make_namespace(cluster, store, space, "privileged")
    kafka, port = broker_on_node(tmp_path)
    [broker] = kafka.brokers
    [log_dir] = broker.log_dirs
    chosen = values(
        store,
        nodeSelector={"kafka": "east"},
        data={"hostPath": str(log_dir.parent)},
        broker={
            "properties": f"process.roles=broker\nlisteners=PLAINTEXT://:{port}\nlog.dirs=/var/lib/kafka/{log_dir.name}\n",
            "bootstrap": f"$(NODE_IP):{port}",
        },
    )
    helm = ("east", CHART, "--namespace", space, "--values", "-")
    rollout = ("rollout", "status", "daemonset/east", "--namespace", space, "--timeout=240s")
    with kafka:
        kafka.create_topic(TOPIC, config=SMALL["4.3.1"])
        produce(broker.bootstrap, 200)
        cluster.helm("install", *helm, given=chosen)
        cluster.kubectl(*rollout)
        folder = log_dir / f"{TOPIC}-0"
        first = await_upload(store, kafka.cluster_id, folder)
        agent = pod_name(cluster, space)
        status = ("tidemark-agent", "status", "--config", "/etc/tidemark/agent.yaml")
        output = cluster.kubectl("exec", "--namespace", space, "daemonset/east", "--", *status)
        assert TOPIC in output.text

        chosen["config"]["freshness"] = {".*": "5m"}
        cluster.helm("upgrade", *helm, given=chosen)
        cluster.kubectl(*rollout)
        assert pod_name(cluster, space) != agent
        produce(broker.bootstrap, 200)
        assert await_upload(store, kafka.cluster_id, folder) > first
        cluster.helm("uninstall", "east", "--namespace", space)
        wait_until(lambda: cluster.contents(space) == {"secret/store"}, what="the agent to end")


BROKER: Properties = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.quorum.voters": "1@localhost:9093",
    "controller.listener.names": "CONTROLLER",
    "listeners": "PLAINTEXT://:9092,CONTROLLER://localhost:9093",
    "advertised.listeners": "PLAINTEXT://POD_IP:9092",
    "log.dirs": "/mnt/kafka/data",
}
CLUSTER_ID = "5L6g3nShT-eMCtK--X86sw"


def local_volume(name: str, storage_class: str, folder: Path) -> Object:
    """A volume in a folder of this machine."""
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": storage_class,
            "capacity": {"storage": "1Gi"},
            "local": {"path": str(folder)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
        },
    }


def broker_objects(folder: Path) -> list[Object]:
    """A broker's StatefulSet that *restricted* takes, its file, and its volume in a folder of this machine."""
    config = {"name": "config", "mountPath": "/mnt/shared/config"}
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container: Object = {"image": KAFKA, "imagePullPolicy": "Never", "securityContext": security}
    address = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    copied = 'sed "s/POD_IP/$POD_IP/" /template/server.properties > /mnt/shared/config/server.properties'
    template = {"name": "template", "mountPath": "/template"}
    own = {"name": "address", "command": ["sh", "-c", copied], "env": [address], "volumeMounts": [template, config]}
    data = {"name": "data", "mountPath": "/mnt/kafka"}
    kafka = {
        "name": "kafka",
        "env": [{"name": "CLUSTER_ID", "value": CLUSTER_ID}],
        "readinessProbe": {"tcpSocket": {"port": 9092}, "periodSeconds": 1},
        "volumeMounts": [config, data],
    }
    pod = {
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 1000,
            "fsGroup": 1000,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "terminationGracePeriodSeconds": 10,
        "initContainers": [container | own],
        "containers": [container | kafka],
        "volumes": [{"name": "template", "configMap": {"name": "kafka"}}, {"name": "config", "emptyDir": {}}],
    }
    claim = {"accessModes": ["ReadWriteOnce"], "storageClassName": "local"}
    return [
        local_volume("kafka", "local", folder),
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "kafka"},
            "data": {"server.properties": "".join(f"{name}={value}\n" for name, value in BROKER.items())},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {"name": "kafka"},
            "spec": {
                "serviceName": "kafka",
                "selector": {"matchLabels": {"app": "kafka"}},
                "template": {"metadata": {"labels": {"app": "kafka"}}, "spec": pod},
                "volumeClaimTemplates": [
                    {
                        "metadata": {"name": "data"},
                        "spec": {**claim, "resources": {"requests": {"storage": "1Gi"}}},
                    }
                ],
            },
        },
    ]


def test_a_sidecar_uploads_what_its_pods_broker_rotates(cluster: Cluster, store: S3Server, tmp_path: Path) -> None:
    space = "sidecar"
    make_namespace(cluster, store, space, "restricted")
    cluster.apply(*broker_objects(tmp_path), namespace=space)
    rollout = ("rollout", "status", "statefulset/kafka", "--namespace", space, "--timeout=240s")
    cluster.kubectl(*rollout)
    chosen = values(
        store,
        mode="sidecar",
        data={"volume": "data", "mountPath": "/mnt/kafka"},
        broker={
            "properties": "process.roles=broker\nlisteners=PLAINTEXT://:9092\nlog.dirs=/mnt/kafka/data\n",
            "bootstrap": "",
        },
    )
    cluster.helm("install", "east", CHART, "--namespace", space, "--values", "-", given=chosen)
    patch = cluster.get("configmap", "east-patch", space)["data"]["patch.yaml"]
    cluster.kubectl("patch", "statefulset", "kafka", "--namespace", space, "--patch", patch)
    cluster.kubectl(*rollout)
    pod = cluster.get("pod", "kafka-0", space)
    [agent] = [status for status in pod["status"]["initContainerStatuses"] if status["name"] == "tidemark-agent"]
    assert agent["state"].keys() == {"running"}

    bootstrap = f"{pod['status']['podIP']}:9092"
    with connect(bootstrap) as admin:
        admin.create_topics([NewTopic(TOPIC, 1, 1, topic_configs=dict(SMALL["4.3.1"]))])
    produce(bootstrap, 200)
    await_upload(store, CLUSTER_ID, tmp_path / "data" / f"{TOPIC}-0")


def test_slots_fetch_from_a_broker_and_keep_their_spools(
    starts_kafka: None, cluster: Cluster, store: S3Server, tmp_path: Path
) -> None:
    space = "fetch"
    make_namespace(cluster, store, space, "restricted")
    for slot in range(2):
        (tmp_path / f"volume-{slot}").mkdir()
        cluster.apply(local_volume(f"spool-{slot}", "spools", tmp_path / f"volume-{slot}"))
    client = {"client.yaml": "{security_protocol: PLAINTEXT}"}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "client"}, "stringData": client}
    cluster.apply(secret, namespace=space)
    kafka, port = broker_on_node(tmp_path / "kafka")
    fetch = {"bootstrap": f"{node.ADDRESS}:{port}", "slots": 2, "clientSecret": "client"}
    chosen = values(
        store,
        mode="fetch",
        fetch=fetch | {"spool": {"size": "1Gi", "storageClass": "spools"}},
        networkPolicy={"brokerPort": port},
    )
    more_than_a_segment = (300, 256 << 10)
    raw = store.client()
    with kafka:
        kafka.create_topic(TOPIC, partitions=1)
        produce(kafka.bootstrap, 200)
        cluster.helm("install", "east", CHART, "--namespace", space, "--values", "-", given=chosen)
        cluster.kubectl("rollout", "status", "statefulset/east", "--namespace", space, "--timeout=240s")
        logs = f"volume-*/spool/{TOPIC}-0/*.log"
        wait_until(lambda: any(log.stat().st_size for log in tmp_path.glob(logs)), what="batches in a spool")
        keys = PartitionKeys(Endpoint("s3://raw", "tidemark"), kafka.cluster_id, TOPIC, 0)
        produce(kafka.bootstrap, *more_than_a_segment)
        wait_until(lambda: uploaded(raw, keys) > 0, what="a fetched segment in the store")
        key = keys.manifest(SegmentName(0))
        assert SegmentManifest.from_bytes(body(raw, key), key).origin == "fetch"
        indexes = f"tidemark/_watermarks/{kafka.cluster_id}/"
        wanted = {f"{indexes}{2_000_000_000 + slot}.json" for slot in range(2)}
        wait_until(
            lambda: {one["Key"] for one in raw.list_objects_v2(Bucket="raw", Prefix=indexes)["Contents"]} == wanted,
            what="the indexes of both slots",
        )
        assert len({log.parent for log in tmp_path.glob(logs)}) == 1, "two slots have the partition"
        stored = uploaded(raw, keys)
        cluster.kubectl("delete", "pod", "--all", "--namespace", space)
        produce(kafka.bootstrap, *more_than_a_segment)
        wait_until(lambda: uploaded(raw, keys) > stored, what="more of them, by pods that found their spools")
        cluster.helm("uninstall", "east", "--namespace", space, "--cascade", "foreground", "--wait")
