from __future__ import annotations

from pathlib import Path

import pytest

from tidemark.errors import ConfigError
from uploader_agent.broker.properties import parse_properties, read_broker


def test_java_properties() -> None:
    text = "# no\n! no\n a = 1 \nb:2\nc 3\nlong=x,\\\n   y\npath=C\\:\\\\kafka\nempty=\na=last\nurl=s3://a=b\n"
    assert parse_properties(text) == {
        "a": "last",
        "b": "2",
        "c": "3",
        "long": "x,y",
        "path": "C:\\kafka",
        "empty": "",
        "url": "s3://a=b",
    }


def write(tmp_path: Path, text: str, *metas: str) -> Path:
    for number, meta in enumerate(metas):
        folder = tmp_path / f"data-{number}"
        folder.mkdir()
        if meta:
            (folder / "meta.properties").write_text(meta)
    path = tmp_path / "server.properties"
    path.write_text(text.replace("ROOT", str(tmp_path)))
    return path


KRAFT = "version=1\nnode.id=4\ncluster.id=abc\n"
DIRS = "log.dirs=ROOT/data-0, ROOT/data-1\n"


def test_kraft_with_two_log_dirs(tmp_path: Path) -> None:
    listeners = "process.roles=broker,controller\nnode.id=4\ncontroller.listener.names=CONTROLLER\n"
    listeners += "listeners=CONTROLLER://:9093,INTERNAL://0.0.0.0:9092\n"
    listeners += "listener.security.protocol.map=CONTROLLER:PLAINTEXT,INTERNAL:SASL_SSL\n"
    broker = read_broker(write(tmp_path, DIRS + listeners, KRAFT, KRAFT))
    assert (broker.node_id, broker.cluster_id, broker.mode) == (4, "abc", "kraft")
    assert broker.log_dirs == (tmp_path / "data-0", tmp_path / "data-1")
    assert (broker.bootstrap, broker.security_protocol) == ("localhost:9092", "SASL_SSL")


def test_zookeeper_with_a_generated_id(tmp_path: Path) -> None:
    text = "log.dir=ROOT/data-0\nzookeeper.connect=zk:2181/kafka\nadvertised.listeners=PLAINTEXT://b7.example:9092\n"
    broker = read_broker(write(tmp_path, text, "version=0\nbroker.id=1007\ncluster.id=abc\n"))
    assert (broker.node_id, broker.mode, broker.bootstrap) == (1007, "zookeeper", "b7.example:9092")


@pytest.mark.parametrize("other", ["", "version=9\n", KRAFT.replace("=4", "=5")])
def test_a_failed_disk_stays_known(tmp_path: Path, other: str) -> None:
    """So does one with a damaged file, and one of another node."""
    broker = read_broker(write(tmp_path, DIRS + "node.id=4\n", KRAFT, other), bootstrap="elsewhere:1")
    assert broker.log_dirs == (tmp_path / "data-0", tmp_path / "data-1")
    assert broker.identity == (4, "abc")
    assert broker.bootstrap == "elsewhere:1"


def test_links_in_a_circle_are_a_disk_that_fails(tmp_path: Path) -> None:
    path = write(tmp_path, DIRS + "node.id=4\n", KRAFT)
    (tmp_path / "data-1").symlink_to(tmp_path / "data-1")
    assert read_broker(path).log_dirs == (tmp_path / "data-0", tmp_path / "data-1")


@pytest.mark.parametrize(
    ("text", "metas", "field", "rule"),
    [
        (DIRS, ("", ""), "log.dirs", "no directory of"),
        (DIRS + "node.id=5\n", (KRAFT, KRAFT), "node.id", "must agree"),
        (DIRS, (KRAFT, KRAFT.replace("abc", "xyz")), "cluster.id", "must agree"),
        (DIRS + "listeners=nonsense\n", (KRAFT, KRAFT), "listeners", "is not <name>://<host>:<port>"),
        (
            DIRS + "listeners=C://:1\ncontroller.listener.names=C\n",
            (KRAFT, KRAFT),
            "listeners",
            "this node is not a broker",
        ),
        (DIRS, ("", "version=9\n"), "log.dirs", "version 9"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, metas: tuple[str, ...], field: str, rule: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_broker(write(tmp_path, text, *metas))
    [(where, what)] = caught.value.problems
    assert where == field
    assert rule in what


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_broker(tmp_path / "none")
