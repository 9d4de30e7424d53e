"""A real broker is restored while the store is ahead, and a person goes on with its log."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

from tests.support.kafka import KafkaCluster
from tests.support.waiting import wait_until
from tests.uploader_agent.in_process import run_here
from tests.uploader_agent.real import Load
from tests.uploader_agent.test_restored_brokers import Restored


def test_the_agent_goes_on_once_a_person_has_gone_on(kafka_disk: KafkaCluster, tmp_path: Path) -> None:
    with ExitStack() as stack:
        here = Restored(tmp_path, kafka_disk)
        stack.callback(here.stop_agents)
        disk, [agent] = here.disks(0), here.agents
        before = Load(here.cluster, here.topic, acks="all")
        before.send(60)
        here.while_stopped(lambda: here.backup.take(*disk))
        here.start_agents()
        before.send(200)
        end = 1 + max(before.acknowledged[0])
        here.await_stored(end)
        here.while_stopped(lambda: here.backup.put_back(*disk))
        after = Load(here.cluster, here.topic, acks="all")
        after.send(120)
        wait_until(here.told, what="the agent to tell of another history")
        at = min(after.acknowledged[0])

        def branch(*options: str) -> dict[str, object]:
            log = tmp_path / f"branch-{len(options)}.log"
            assert run_here(["branch", here.topic, "0", "-c", agent.config, "-o", "json", *options], log) == 0
            line = next(line for line in log.read_text().splitlines() if line.startswith("{"))
            answer: dict[str, object] = json.loads(line)
            return answer

        assert (shown := branch())["outcome"] == "would branch"
        assert (shown["at"], shown["stored_end"]) == (at, end)
        done = branch("--execute", "--by", "ada", "--reason", "restored a backup")
        assert done["outcome"] == "branched"
        wait_until(lambda: not here.lost(after), what="all acknowledged records of the present history to be stored")
        wait_until(lambda: not here.told(), what="the end of the incident")
        after.send(60)
        wait_until(lambda: not here.lost(after), what="what came later to be stored")
        assert here.lost(before) == [], "the former history is still there"
        assert agent.watermark()[1].restores == (at,)
        assert branch("--execute", "--by", "ada", "--reason", "once more", "--unproved")["outcome"] == "one history"
