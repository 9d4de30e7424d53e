"""What the page's API costs at size: ``.tidemark/env/airflow/bin/python -m tests.plugins.web.page_figures``.

A thousand topics of 50 partitions on 300 brokers, and one of 2,000 partitions with 300 commits whose evidence was not
folded; a day of samples. The store is this machine's disk: a remote one adds its latency to each request.
"""

from __future__ import annotations

import sys
import tempfile
import time
from datetime import date
from pathlib import Path

import httpx
import psutil

from tests.plugins.web.page_server import ANN, PageServer
from tests.plugins.web.page_world import PageWorld
from tests.plugins.world import CLUSTER, commit, entry, state
from tidemark.monitoring.overview import Overview, Samples, TopicSummary, hours
from tidemark.table.evidence import EvidenceRow
from tidemark.timestamps import utc_now

TOPICS, PARTITIONS, BROKERS, LARGE, COMMITS = 1000, 50, 300, 2000, 300
WIDE = "wide"


def build(world: PageWorld) -> None:
    """Write the deployment."""
    names = [f"topic-{number:04}" for number in range(TOPICS)]
    world.add_topics(WIDE, *names)
    entries = [entry(name, n, 10**9 + n, log_end=10**9 + n + 9) for name in names for n in range(PARTITIONS)]
    entries += [entry(WIDE, n, 10**9 + n + 5, log_end=10**9 + n + 9) for n in range(LARGE)]
    for broker in range(BROKERS):
        world.put_index(*entries[broker::BROKERS], broker=5000 + broker)
    brokers = f"{{all: {{brokers: [5000-{5000 + BROKERS - 1}]}}}}"
    world.topics_file.with_name("brokersets.yaml").write_text(f"clusters: {{{CLUSTER}: {{brokersets: {brokers}}}}}")
    for number in range(COMMITS):
        row = EvidenceRow(0, number, 0, 9, "quarantined", 9, date(2026, 3, 1), "s", 0, 9, 0, f"{number}.parquet")
        commit(world.table(WIDE), *(state(n, 10**9 + n) for n in range(LARGE if not number else 0)), evidence=[row])
    deployment, now = world.deployment, utc_now()
    keys, store = deployment.deployment_keys(CLUSTER), world.table().store
    topics = tuple(TopicSummary(topic=one, state="complete", ledger_n=9, rows=10**9) for one in (WIDE, *names))
    overview = Overview(cluster=CLUSTER, at=now, topics=topics)
    store.put(keys.overview, overview.to_bytes())
    for hour in hours(now, 24):
        samples = Samples(cluster=CLUSTER)
        for _ in range(12):
            samples = samples.with_sample(overview.model_copy(update={"at": hour}))
        store.put(keys.samples(hour), samples.to_bytes())


def main() -> None:
    """Print seconds and bytes of each view, the first time and again."""
    with tempfile.TemporaryDirectory() as folder:
        world = PageWorld(Path(folder) / "world")
        build(world)
        with PageServer(world, Path(folder)) as server, server.client(ANN) as client:
            for path in ("api/topics", "api/brokersets", *(f"api/topics/{CLUSTER}/{WIDE}{rest}" for rest in _VIEWS)):
                first, size = timed(client, path)
                again, _ = timed(client, path)
                sys.stdout.write(f"{path:55} {first:6.2f} s, again {again:6.3f} s, {size:8,} bytes\n")
            resident = psutil.Process().memory_info().rss >> 20
            sys.stdout.write(f"resident {resident} MiB, the tests' own parts included\n")


_VIEWS = ("", "/partitions", "/partitions?at=1999", "/dates", "/history", "/lineage?partition=7&start=0&end=100")


def timed(client: httpx.Client, path: str) -> tuple[float, int]:
    """Seconds and bytes of an answer."""
    began = time.perf_counter()
    answer = client.get(path)
    answer.raise_for_status()
    return time.perf_counter() - began, len(answer.content)


if __name__ == "__main__":
    main()
