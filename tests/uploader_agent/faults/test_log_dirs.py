"""One pass over a real broker's two log directories: what lies there, then what a topic made again has there."""

from __future__ import annotations

from pathlib import Path

from tests.support.kafka import KafkaCluster
from tests.support.s3 import S3Server
from tests.support.waiting import wait_until
from tests.uploader_agent.faults.cluster import create, delete, folder, move_log_dir
from tests.uploader_agent.real import SMALL, Deployment, Load
from tidemark.store import Store
from uploader_agent.disk.log_dirs import topic_id_of

PARTITIONS = 4


def test_two_log_dirs(kraft3: KafkaCluster, tmp_path: Path, raw: Store, s3: S3Server) -> None:
    broker, topic = kraft3.brokers[0], "spread"
    alone = [[broker.node_id]] * PARTITIONS
    small = {"min_insync_replicas": "1", **{name.replace(".", "_"): size for name, size in SMALL["4.3.1"].items()}}
    create(kraft3, topic, alone, **small)
    if len({folder(broker, topic, number).parent for number in range(PARTITIONS)}) == 1:
        move_log_dir(kraft3, topic, 0, broker)  # other topics had filled the other directory
    Load(kraft3, topic).send(400, PARTITIONS)
    found = broker.log_dirs[0] / "lost+found"
    found.mkdir()
    try:
        options = {"endpoint_url": s3.endpoint, "path_style": True}
        deployment = Deployment(tmp_path, kraft3, raw, topic, topic, store=options)
        assert {deployment.folder(number).parent for number in range(PARTITIONS)} == set(broker.log_dirs)
        assert deployment.run("upload-once", s3.env()) == 0, deployment.log.read_text()
        for number in range(PARTITIONS):
            deployment.check_exact(number)
        assert "lost+found" in deployment.log.read_text()
    finally:
        found.rmdir()  # a broker that starts knows no such partition

    former = {info.key: info.etag for info in raw.list(f"{topic}/{kraft3.cluster_id}/")}
    old_id = topic_id_of(deployment.folder())
    delete(kraft3, topic)
    for place in broker.log_dirs:
        wait_until(lambda at=place: not list(at.glob(f"{topic}-?")), what="the directories to be renamed")  # type: ignore[misc]
    create(kraft3, topic, alone, **small)
    Load(kraft3, topic).send(400, PARTITIONS)
    new_id = topic_id_of(deployment.folder())
    assert new_id != old_id
    assert deployment.run("upload-once", s3.env()) == 0, deployment.log.read_text()
    for number in range(PARTITIONS):
        deployment.check_exact(number, place=f"{topic}@{new_id}")
    for key, etag in former.items():
        assert raw.head(key).etag == etag
