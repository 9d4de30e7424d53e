"""Follows a demo until all acknowledged records have landed, reports what it waits for, and ends a hopeless wait.

A demo ends early if a part has ended, if a topic's runs fail over and over, or if nothing happens at all. On a busy
machine everything takes longer; the wait continues while records are sent, stored or landed, or a task begins.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from demo.accounts import Auditor, landed_up_to
from demo.stack import LIVE_DAG, Stack
from demo.steps import Steps
from demo.streams import STREAMS, Production, Stream

SAY_AFTER: Final = 20.0
"""Seconds without a landed row after which the demo reports what it waits for, and again each time."""

_IDLE: Final = 240.0
"""Seconds without any event or running task after which the demo gives up."""

_TASK: Final = 900.0
"""Seconds without any event except a running task after which the demo gives up; its tasks take seconds."""

_FAILED_RUNS: Final = 3

Ends = dict[str, dict[int, int]]
"""The offset after the last one, by topic and partition."""


@dataclass(frozen=True)
class Situation:
    """The progress: acknowledged, stored and landed offsets."""

    sent: int
    rows: int
    acknowledged: Ends
    stored: Ends
    landed: Ends

    def behind(self, stream: Stream) -> list[int]:
        """Partitions with acknowledged records that have not landed."""
        landed = self.landed[stream.topic]
        ends = sorted(self.acknowledged[stream.topic].items())
        return [number for number, end in ends if end > landed.get(number, 0)]


@dataclass(frozen=True)
class Task:
    """The first task of the newest run that is not done."""

    run: str
    name: str
    state: str
    tries: int

    @property
    def text(self) -> str:
        """The task's state, for people."""
        if self.state == "deferred":
            return f"Airflow's task {self.name} waits for the watermarks"
        return f"Airflow's task {self.name} is {self.state}, try {self.tries}"


class Follower:
    """Follows one production through ``stack``."""

    def __init__(self, stack: Stack, steps: Steps, production: Production, auditor: Auditor) -> None:
        self._stack = stack
        self._steps = steps
        self._production = production
        self._auditor = auditor
        self._task: Task | None = None
        self._agent: dict[tuple[str, int], str] = {}
        self._landed_at = self._changed_at = self._said_at = time.monotonic()

    def follow(self) -> None:
        """Return when all acknowledged records have landed.

        Raises TimeoutError when nothing happens any more, ProcessFailed for an ended part, RuntimeError for failing
        runs, and any error of a producer.
        """
        last, announced, restarted = self._look(), False, False
        while self._production.running or any(last.behind(stream) for stream in STREAMS):
            time.sleep(2 if self._production.running else 1)
            now = self._look()
            if now.rows != last.rows:
                self._steps.say(f"sent {now.sent:,}, landed {now.rows:,}")
                self._landed_at = self._said_at = time.monotonic()
            if now != last:
                self._changed_at = time.monotonic()
            last = now
            if not restarted and self._production.half_sent:
                restarted = True
                self._stack.restart_broker()
            if not announced and not self._production.running:
                announced = True
                self._production.join()
                self._steps.say("all sent and acknowledged; waiting for the last of it to land")
            if time.monotonic() - self._said_at > SAY_AFTER:
                self._check()
                self._say(last)
        self._production.join()

    def _look(self) -> Situation:
        ledgers = {stream.topic: self._auditor.ledger(stream) for stream in STREAMS}
        return Situation(
            sent=sum(self._production.sent.values()),
            rows=sum(ledger.rows for ledger in ledgers.values()),
            acknowledged={
                topic: dict(acknowledged.ends) for topic, acknowledged in self._production.acknowledged.items()
            },
            stored={stream.topic: self._auditor.stored_up_to(stream) for stream in STREAMS},
            landed={topic: landed_up_to(ledger) for topic, ledger in ledgers.items()},
        )

    def _check(self) -> None:
        """Raise an error if waiting on is hopeless."""
        self._stack.check()
        task = self._current_task()
        if task != self._task:
            self._task, self._changed_at = task, time.monotonic()
        patience = _TASK if task is not None and task.state == "running" else _IDLE
        if time.monotonic() - self._changed_at > patience:
            raise TimeoutError(f"nothing has happened for {patience:.0f} s, and not all that was sent has landed")

    def _current_task(self) -> Task | None:
        client, dag = self._stack.airflow.client, LIVE_DAG
        failed = client.get(f"/dags/{dag}/dagRuns", state="failed", limit=1)["total_entries"]
        if failed >= _FAILED_RUNS:
            raise RuntimeError(f"{failed} runs of {dag} have failed: see their tasks' logs")
        for run in client.get(f"/dags/{dag}/dagRuns", limit=1, order_by="-run_after")["dag_runs"]:
            for task in client.task_instances(dag, run["dag_run_id"]):
                if task["state"] != "success":
                    state = task["state"] or "not scheduled yet"
                    return Task(run["dag_run_id"], task["task_id"], state, max(1, task["try_number"]))
        return None

    def _say(self, situation: Situation) -> None:
        """Report the partitions that the demo waits for, and the reasons."""
        self._said_at = time.monotonic()
        waited = f"no row has landed for {self._said_at - self._landed_at:.0f} s"
        try:
            self._agent = self._stack.agent_waits()
        except OSError as error:
            self._steps.say(f"the agent does not answer: {error}")
        reasons = [reason for stream in STREAMS for reason in self._reasons(situation, stream)]
        for reason in reasons or ["nothing is acknowledged that has not landed"]:
            self._steps.say(f"{waited}: {reason}")

    def _reasons(self, situation: Situation, stream: Stream) -> list[str]:
        stored, landed = situation.stored[stream.topic], situation.landed[stream.topic]
        reasons: list[str] = []
        ends: list[str] = []
        for number in situation.behind(stream):
            end, at = situation.acknowledged[stream.topic][number], (stream.topic, number)
            known = max(stored.get(number, 0), landed.get(number, 0))  # an index tells of the store as it was
            if known >= end:
                ends.append(f"{number} ({landed.get(number, 0):,} of {known:,} stored offsets)")
            elif at in self._agent:
                reasons.append(f"{stream.topic}: partition {number} is stored up to {known:,}: {self._agent[at]}")
            else:
                told = f"was stored up to {known:,}" if known else "had nothing stored"
                reasons.append(f"{stream.topic}: partition {number} {told} when an agent last wrote its index")
        if ends:
            why = self._task.text if self._task else "no run of the DAG is under way"
            reasons.append(f"{stream.topic}: partition {', '.join(ends)}: {why}")
        return reasons
