"""Several topics of one deployment, and their landing as the triggerer would write it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.spark.world import World
from tests.support.raw_builder import RawBuilder
from tidemark.formats.table.ledger import new_attempt
from tidemark.formats.table.live_landing import AheadPartition, LiveLanding, TopicLanding, read_landing, write_landing
from tidemark.store import open_store
from tidemark.table.delta_table import open_topic_table
from tidemark.timestamps import utc_now
from tidemark.topics import Deployment, load_topics


class OneTopic(World):
    """One of the topics, with all that a :class:`World` can check of it."""

    def __init__(self, root: Path, deployment: Deployment, topic: str, broker: int) -> None:
        self.topics_file = root / "topics.yaml"
        self.table = open_topic_table(deployment, deployment.topic(topic))
        self.raw = RawBuilder(open_store(f"file://{root}/raw"), topic=topic, broker=broker)


class LiveWorld:
    """``topics`` of cluster ``east``, all with a ``freshness``."""

    def __init__(
        self,
        root: Path,
        *topics: str,
        freshness: str = "60s",
        more: Sequence[str] = (),
        lake: str | None = None,
    ) -> None:
        """``more`` are YAML lines of each topic; ``lake`` is the URL of one elsewhere."""
        for name in ("raw", "lake"):
            (root / name).mkdir(parents=True)
        lake = lake or f"file://{root}/lake"
        lines = [f"raw: {{url: 'file://{root}/raw'}}", f"lake: '{lake}'", "cluster: east", "topics:"]
        for topic in topics:
            lines += [f"  - topic: {topic}", f"    freshness: {freshness}", *(f"    {line}" for line in more)]
        (root / "topics.yaml").write_text("\n".join(lines) + "\n")
        self.topics_file = root / "topics.yaml"
        self.deployment = load_topics(self.topics_file)
        self.topics = {name: OneTopic(root, self.deployment, name, 1 + number) for number, name in enumerate(topics)}
        self.store = open_store(self.deployment.lake_store)
        self.key = self.deployment.deployment_keys("east").landing

    def due(self, *topics: str) -> LiveLanding:
        """Publish what was uploaded of the topics, and write their landing."""
        landing = LiveLanding(cluster="east", began_at=utc_now(), topics=tuple(map(self._due, topics or self.topics)))
        write_landing(self.store, self.key, landing, read_landing(self.store, self.key).etag)
        return landing

    def landing(self) -> LiveLanding:
        """As it is stored."""
        found = read_landing(self.store, self.key).value
        assert found is not None
        return found

    def statuses(self) -> dict[str, str]:
        """What became of each topic of the landing."""
        return {one.topic: one.status for one in self.landing().topics}

    def _due(self, topic: str) -> TopicLanding:
        raw = self.topics[topic].raw
        raw.publish()
        ahead = tuple(
            AheadPartition(
                partition=partition,
                incarnation=incarnation,
                topic_id=raw.lives.incarnations[incarnation].topic_id,
                leader_epoch=known.leader_epoch,
                end=max(known.end, known.tail_end or 0),
            )
            for (incarnation, partition), known in raw.partitions.items()
        )
        return TopicLanding(topic=topic, attempt=new_attempt(), digest="", partitions=ahead)
