"""One cluster writes under a name: another one is refused, and one that was made again too, until a person acts."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from kafka.protocol.metadata import MetadataResponse

from tests.support.waiting import HUNG
from tests.uploader_agent.fakes import CLUSTER, ID, OTHER_ID, T
from tests.uploader_agent.in_process import run_here
from tests.uploader_agent.operated import Operated
from tidemark.errors import ConfigError, PreconditionFailed, Refused, TidemarkError, UnknownOutcome
from tidemark.formats.keys import ControlKeys
from tidemark.formats.raw.cluster import ClusterOwner
from tidemark.formats.raw.watermark_index import WatermarkIndex
from tidemark.storage import ClusterStore
from tidemark.store import LocalStore
from tidemark.store.base import Fetched
from uploader_agent.broker.admin import AdminMetadata, BrokerUnavailable
from uploader_agent.broker.properties import Identity
from uploader_agent.stored.cluster_name import ClusterName, ClusterReplaced, DiskIdentity, GuardedStore

CONTROL = ControlKeys("", "prod")
KEY = CONTROL.cluster_owner


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


def of(store: LocalStore, *ids: str) -> ClusterName:
    """The name, for a cluster that has these ids one after another."""
    following = iter(ids)
    current = [next(following)]

    def own_id() -> str:
        now = current[0]
        current[0] = next(following, now)
        return now

    return ClusterName(ClusterStore(store, CONTROL), own_id)


def test_the_first_cluster_owns_the_name_and_another_one_is_refused(store: LocalStore) -> None:
    for _ in range(2):
        of(store, "one").check()
    other, told = of(store, "two"), list[str]()
    other.on_wrong = lambda: told.append("ends")
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"prod belongs to the cluster one in .*take-name one"):
            other.check()
    assert told == ["ends"]
    with pytest.raises(Refused, match="belongs to the cluster one"):
        GuardedStore(store, other.check).put("_heads/prod/1.json", b"")
    with pytest.raises(Refused, match="belongs to the cluster one"):
        GuardedStore(store, other.check).copy(KEY, "_damaged/prod/1/x.head", source_etag="x")
    assert [info.key for info in store.list("")] == [KEY]


def test_two_that_begin_at_once_agree(store: LocalStore) -> None:
    class Raced(LocalStore):
        """The other one creates the object between the read and the write of this one."""

        def put(self, key: str, body: object, **options: object) -> str:
            of(store, "one").check()
            raise PreconditionFailed(key, "exists already")

    with pytest.raises(ConfigError, match="belongs to the cluster one"):
        ClusterName(ClusterStore(Raced(Path(store.url.removeprefix("file://"))), CONTROL), lambda: "two").check()


def test_a_cluster_that_becomes_another_one_writes_no_more(store: LocalStore) -> None:
    name = of(store, "one", "one", "two")
    guarded = GuardedStore(store, name.check)
    guarded.put("a", b"")
    guarded.put("b", b"")
    with pytest.raises(Refused, match="worked for the cluster one, and now finds the cluster two"):
        guarded.put("c", b"")
    with pytest.raises(ClusterReplaced):
        name.raise_wrong()
    assert ClusterOwner.load(store, KEY).cluster_id == "one"


def test_while_the_store_fails_nothing_is_written_and_nothing_decided(store: LocalStore) -> None:
    class Failing(LocalStore):
        def get(self, key: str, *, if_match: str | None = None, limit: int | None = None) -> Fetched:
            raise UnknownOutcome(key, "connection reset")

    name = ClusterName(ClusterStore(Failing(Path(store.url.removeprefix("file://"))), CONTROL), lambda: "one")
    with pytest.raises(UnknownOutcome):
        GuardedStore(store, name.check).put("a", b"")
    name.raise_wrong()
    assert not any(store.list(""))


def meta(folder: Path, cluster: str, node: int = 1) -> None:
    folder.mkdir(exist_ok=True)
    temporary = folder / "meta.properties.tmp"
    temporary.write_text(f"version=1\nnode.id={node}\ncluster.id={cluster}\n")
    os.replace(temporary, folder / "meta.properties")  # noqa: PTH105 - as Kafka does


def test_the_disk_says_which_cluster_it_is_of(tmp_path: Path) -> None:
    """A disk that is away, or from elsewhere, says nothing against the others."""
    one, two = tmp_path / "1", tmp_path / "2"
    meta(one, "abc")
    meta(two, "abc")
    identity = DiskIdentity((one, two), Identity(1, "abc"))
    assert identity() == "abc"
    (one / "meta.properties").unlink()
    assert identity() == "abc"
    meta(one, "other")
    assert identity() == "abc"
    (two / "meta.properties").unlink()
    with pytest.raises(
        ClusterReplaced, match="for node 1 of the cluster abc, and now finds node 1 of the cluster other"
    ):
        identity()
    meta(one, "abc", node=7)
    with pytest.raises(ClusterReplaced, match="node 7 of the cluster abc"):
        identity()
    (one / "meta.properties").write_text("version=1\n")
    assert identity() == "abc", "half a file says nothing"


def test_the_name_is_handed_over_to_the_cluster_that_replaces_its_owner(store: LocalStore) -> None:
    of(store, "one").check()
    second = of(store, "two")
    for former in ("three", "two"):
        with pytest.raises(ConfigError, match=f"{former} does not own the name, but one"):
            second.hand_over(former)
    now = datetime.now(UTC)
    index = WatermarkIndex(cluster="prod", broker=3, agent_version="1", written_at=now)
    store.put(CONTROL.index(3), index.to_bytes())
    with pytest.raises(TidemarkError, match=r"agents of broker 3 have written .* within the last 3 minutes"):
        second.hand_over("one")
    old = index.model_copy(update={"written_at": now - timedelta(minutes=4)})
    store.put(CONTROL.index(3), old.to_bytes())
    assert second.hand_over("one") == ClusterOwner(cluster_id="two", former=("one",))
    assert second.hand_over("one").cluster_id == "two", "again"
    of(store, "two").check()
    with pytest.raises(ConfigError, match="belongs to the cluster two"):
        of(store, "one").check()


class Answering:
    """An admin client of a broker of this cluster, which knows no topic."""

    def __init__(self, cluster: str) -> None:
        self._cluster, self._manager = cluster, self

    def run(self, *_: object) -> MetadataResponse:
        return MetadataResponse(topics=[], cluster_id=self._cluster)

    def close(self) -> None:
        pass


def test_an_answer_of_another_clusters_broker_does_not_count() -> None:
    """As where `broker.bootstrap` names another one, or the broker beside the agent was made again."""
    own = AdminMetadata(1, lambda: Answering("abc"), "abc")
    assert (own.leaders([T]), own.answered) == ({}, "abc")
    other = AdminMetadata(1, lambda: Answering("other"), "abc")
    with pytest.raises(BrokerUnavailable, match="of the cluster other, and the disk is of abc; correct broker"):
        other.leaders([T])
    slots = AdminMetadata(-1, lambda: Answering("other"))
    assert (slots.leaders([T]), slots.answered) == ({}, "other"), "a slot compares it before it writes"


def test_a_frozen_agent_of_the_former_owner_writes_no_more_after_the_hand_over(store: LocalStore) -> None:
    now = [0.0]
    former = ClusterName(ClusterStore(store, CONTROL), lambda: "one", lambda: now[0])
    former.check()
    of(store, "two").hand_over("one")
    now[0] = 599.0
    former.check()
    now[0] = 601.0
    with pytest.raises(ConfigError, match="belongs to the cluster two"):
        former.check()


def written(operated: Operated) -> dict[str, str]:
    return {info.key: info.etag for info in operated.store.list("")}


def other_cluster(operated: Operated, topic_id: str = OTHER_ID) -> None:
    """Make the broker another cluster's: its own metadata, and its topic of the same name."""
    for log_dir in operated.disk.log_dirs:
        meta(log_dir, "another-cluster")
    operated.disk.partition(T, topic_id=topic_id).fill(0, end=100)


def test_a_second_cluster_of_one_name_writes_nothing(tmp_path: Path) -> None:
    operated = Operated(tmp_path, cluster="prod")
    operated.disk.partition(topic_id=ID).fill(0, end=100)
    assert operated.once() == 0, operated.log()
    before = written(operated)
    other_cluster(operated)
    with operated.process() as agent:
        assert agent.wait(HUNG) == 2, operated.log()
    assert operated.once() == 2
    assert run_here(["reupload", "orders", "0", "-c", operated.config], operated.root / "repair.log") == 2
    assert written(operated) == before
    assert f"cluster: prod belongs to the cluster {CLUSTER} in" in operated.log()
    assert f"tidemark-agent take-name {CLUSTER}" in operated.log()
    topic = operated.store.get(ControlKeys("", "prod").incarnations("orders")).body
    assert b'"ended_at":null' in topic
    took = operated.root / "take.log"
    assert run_here(["take-name", CLUSTER, "-c", operated.config], took) == 1
    assert "within the last 3 minutes: stop those" in took.read_text()


def test_a_cluster_that_is_made_again_beside_a_running_agent_is_not_written_under_the_old_ones_id(
    tmp_path: Path,
) -> None:
    operated = Operated(tmp_path)
    operated.disk.partition(topic_id=ID).fill(0, end=100)
    with operated.process() as agent:
        operated.await_covered(agent, 100)
        other_cluster(operated)
        assert agent.wait(HUNG) == 1, operated.log()
    assert "and now finds node 1 of the cluster another-cluster: nothing more is written" in operated.log()
    assert not [key for key in written(operated) if OTHER_ID in key], "nothing of the new cluster's topic"
    keys = ControlKeys("", CLUSTER)
    assert OTHER_ID.encode() not in operated.store.get(keys.index(1)).body
    assert operated.once() == 0, operated.log()
    assert any(info.key.startswith("another-cluster/") for info in operated.store.list(""))


def test_config_check_names_the_owner(tmp_path: Path) -> None:
    operated = Operated(tmp_path, cluster="prod")
    assert operated.once() == 0, operated.log()
    for log_dir in operated.disk.log_dirs:
        meta(log_dir, "another-cluster")
    said = operated.root / "check.log"
    assert run_here(["config", "check", "-c", operated.config], said) == 1
    assert (
        f"write as the cluster prod: the agent's file: cluster: prod belongs to the cluster {CLUSTER}"
        in said.read_text()
    )
