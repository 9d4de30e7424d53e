"""Which log directories a broker has, look by look; what an agent does with them is in ``test_disk_faults``."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.uploader_agent.broker.test_properties import KRAFT
from tidemark.formats.keys import TopicPartition
from uploader_agent.broker.properties import BrokerDirs, read_broker
from uploader_agent.disk.locks import DirectoryLocks
from uploader_agent.disk.log_dirs import Disks


class Followed:
    """A broker's files below a path, and what is found by them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.properties = root / "server.properties"
        for name in ("a", "b"):
            self.make(name)
        self.name("a", "b")
        self.locks = DirectoryLocks()
        self.dirs = BrokerDirs(self.properties, read_broker(self.properties), locks=self.locks)
        self._disks = Disks(self.dirs)

    def make(self, name: str, meta: str = KRAFT) -> None:
        """A log directory with a partition of its name, and one of the topic ``both``."""
        for partition in (f"{name}-0", "both-0"):
            (self.root / name / partition).mkdir(parents=True)
        (self.root / name / "meta.properties").write_text(meta)

    def name(self, *names: str, node: int = 4) -> None:
        dirs = ",".join(str(self.root / name) for name in names)
        self.properties.write_text(f"process.roles=broker\nnode.id={node}\nlog.dirs={dirs}\n")

    def look(self) -> tuple[set[str], set[str]]:
        """The topics that are found, and the names of the directories that cannot be read."""
        found = self._disks.find()
        self.partitions: Mapping[TopicPartition, Path] = found.partitions
        assert {path.name for path in self.dirs} == {path.name for path in self.dirs.named} - _names(found.unreadable)
        return {tp.topic for tp in found.partitions}, _names(found.unreadable)


def _names(paths: Mapping[Path, str]) -> set[str]:
    return {path.name for path in paths}


@pytest.fixture
def followed(tmp_path: Path) -> Iterator[Followed]:
    made = Followed(tmp_path)
    yield made
    made.locks.close()


@pytest.mark.parametrize(
    "meta", [None, "", "version=1\nnode.id=4\n", KRAFT.replace("=4", "=5"), KRAFT.replace("abc", "xyz")]
)
def test_what_has_no_meta_properties_of_the_broker_is_not_read(followed: Followed, meta: str | None) -> None:
    path = followed.root / "b" / "meta.properties"
    before = path.read_text()
    path.unlink() if meta is None else path.write_text(meta)
    assert followed.look() == ({"a", "both"}, {"b"})
    path.write_text(before)
    assert followed.look() == ({"a", "b", "both"}, set())


def test_what_the_file_no_longer_names_is_followed_while_it_answers(followed: Followed) -> None:
    """The broker may still append to it; where the two have a partition, the one that is named counts."""
    followed.make("c")
    followed.name("a", "c")
    assert followed.look() == ({"a", "b", "c", "both"}, set())
    assert followed.partitions[TopicPartition("both", 0)].parent.name == "c"
    followed.name("a", "b")
    followed.look()
    assert followed.partitions[TopicPartition("both", 0)].parent.name == "b"
    shutil.rmtree(followed.root / "c")
    assert followed.look() == ({"a", "b", "both"}, set())
    assert _names(dict.fromkeys(followed.dirs.named, "")) == {"a", "b"}


def test_none_of_those_that_are_named_answers(followed: Followed) -> None:
    followed.name("x", "y")
    assert followed.look() == ({"a", "b", "both"}, {"x", "y"})
    shutil.rmtree(followed.root / "a")
    assert followed.look() == ({"b", "both"}, {"x", "y"})


@pytest.mark.parametrize(("node", "meta"), [(5, KRAFT.replace("=4", "=5")), (4, KRAFT.replace("abc", "xyz"))])
def test_another_broker_is_one_of_which_all_named_directories_are(followed: Followed, node: int, meta: str) -> None:
    (followed.root / "b" / "meta.properties").write_text(meta)
    followed.name("a", "b", node=node)
    followed.look()
    assert followed.dirs.replaced is None, "one is the former broker's still"
    (followed.root / "a" / "meta.properties").write_text(meta)
    assert followed.look() == (set(), {"a", "b"})
    assert "the broker is now node" in str(followed.dirs.replaced)


def test_a_file_that_is_wrong_changes_nothing(followed: Followed) -> None:
    followed.name("a")
    followed.properties.write_text(f"{followed.properties.read_text()}listeners=nonsense\n")
    assert followed.look() == ({"a", "b", "both"}, set())
    assert followed.dirs.problem is not None
    assert "listeners" in followed.dirs.problem[1]


def test_the_address_is_followed(followed: Followed) -> None:
    followed.properties.write_text(f"{followed.properties.read_text()}listeners=PLAINTEXT://:19092\n")
    followed.look()
    assert followed.dirs.broker.bootstrap == "localhost:19092"
