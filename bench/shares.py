"""CPU seconds of a landing and of an idle deployment, by kind of process: Airflow's, the job's, and Spark's.

One topic lands by its own DAG, five live topics land together, then nothing lands for a while. The stores are on the
local disk, so that orchestration is measured. CPU time is read from ``/proc`` 30 times a second, and a process that
ends between two looks keeps what it had at the last one: ``all of it`` also counts the rest, for which its parent has
waited.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self

from bench.data import HOME
from bench.measure import Row
from tests.spark.live.live_world import OneTopic
from tests.support.airflow import AirflowStack, import_early
from tests.support.cpu import processes
from tests.support.live_end import Packer
from tests.support.paths import ROOT
from tests.support.pipeline import pipeline_env
from tests.support.postgres import Postgres
from tests.support.spark import ConnectServer
from tests.support.waiting import wait_until
from tests.tidemark.kafka_log.build import Record, batch, simple
from tidemark.timestamps import utc_now
from tidemark.topics import load_topics

ROUNDS: Final = 5
IDLE_SECONDS: Final = 60.0
QUIET: Final = 3
LIVE: Final = 5
RECORDS: Final = 20

_LOOK_SECONDS: Final = 0.03
_OWN, _LIVE_DAG = "tidemark_ingest__east__orders", "tidemark_live__east"
_JOBS: Final = ("run_plan.py", "land_live.py", "cluster.job_host")


class Shares:
    """CPU seconds by kind of process below ``roots``, which are named by their ids, while the context lasts."""

    def __init__(self, roots: Mapping[int, str]) -> None:
        self._roots = roots
        self._kinds: dict[tuple[int, str], str] = {}
        self._cpu: dict[tuple[int, str], float] = {}
        self._total = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Self:
        self._look()
        self._before, self._total_before = dict(self._cpu), self._total
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._look()

    @property
    def seconds(self) -> dict[str, float]:
        """By kind of process, and of all of them."""
        found: dict[str, float] = defaultdict(float)
        for key, cpu in self._cpu.items():
            found[self._kinds[key]] += cpu - self._before.get(key, 0.0)
        return {**found, "all of it": self._total - self._total_before}

    def _sample(self) -> None:
        while not self._stop.wait(_LOOK_SECONDS):
            self._look()

    def _look(self) -> None:
        running, kinds = {one.key[0]: one for one in processes()}, dict[int, str]()

        def kind_of(pid: int) -> str:
            """The kind of a process; empty for one that is not below the roots."""
            if pid not in kinds:
                process = running.get(pid)
                above = "" if process is None or pid in self._roots else kind_of(process.parent)
                kinds[pid] = self._roots[pid] if pid in self._roots else _kind(pid, above) if process else ""
            return kinds[pid]

        total = 0.0
        for pid, process in running.items():
            if kind := kind_of(pid):
                self._kinds[process.key], self._cpu[process.key] = kind, process.own
                total += process.own + process.reaped
        self._total = total


def _kind(pid: int, above: str) -> str:
    """The kind of a process by its command line; ``above`` is its parent's. Empty for one that is nobody's."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return above
    if any(job in command for job in _JOBS):
        return "job: JVM" if "SparkSubmit" in command else "job"
    if not above:
        return ""
    if "python_daemon" in command or "pyspark.daemon" in command:
        return "Spark: Python workers"
    if "java" in command.partition(" ")[0]:
        return "job: JVM" if above != "Spark Connect" else above
    if command.startswith("airflow worker"):
        return "tasks" if above in {"tasks: supervisors", "tasks"} else "tasks: supervisors"
    return {"dag-processor": "dag-processor: files", "tasks: supervisors": "tasks"}.get(above, above)


def measure() -> list[Row]:
    """Figures of an idle deployment, a landing by the topic's own DAG, a live one, and one by spark-submit."""
    folder = _emptied("shares")
    world = _World(folder / "world")
    env = pipeline_env(world.topics_file, folder / "spark-conf", scan_seconds=2.0)
    del env["AIRFLOW_CONN_SPARK_DEFAULT"]  # stored in the metadata database instead, to be changed
    import_early(folder / "airflow")
    rows: list[Row] = []
    with (
        ConnectServer(folder) as server,
        AirflowStack(
            folder / "airflow", dags=ROOT / "dags", plugins=ROOT / "plugins", env=env, unpaused=[_OWN, _LIVE_DAG]
        ) as stack,
    ):
        roots = {process.pid: process.name for process in stack.processes} | {server.process.pid: "Spark Connect"}
        wait_until(lambda: _waits(stack, _OWN, "wait_and_plan"), what="the first run to wait", interval=0.5)
        stack.client.post("/connections", _connection("spark_connect", "localhost", port=server.port))

        def own() -> None:
            world.land()
            wait_until(lambda: _waits(stack, _OWN, "wait_and_plan"), what="the next run to wait", interval=0.5)

        def live() -> None:
            world.land_live()
            wait_until(lambda: _waits(stack, _LIVE_DAG, "land"), what="the next run to wait", interval=0.5)

        for action in (own, live):
            action()
        rows += _rows("own DAG, Spark Connect", roots, own)
        rows += _rows(f"live, {LIVE} topics", roots, live)
        rows += _rows(f"idle, {IDLE_SECONDS:.0f} s", roots, lambda: time.sleep(IDLE_SECONDS))
        stack.client.patch("/connections/spark_default", _connection("spark", "local[2]"))
        own()
        rows += _rows("own DAG, spark-submit", roots, own)
    return rows


def idle() -> list[Row]:
    """Figures of Airflow on SQLite and on PostgreSQL at the same time, while topics wait; then also with the watch."""
    folder = _emptied("airflow-idle")
    topics = [f"quiet-{number}" for number in range(QUIET)]
    topics_file = folder / "topics.yaml"
    lines = [f"raw: {{url: 'file://{folder}/raw'}}", f"lake: 'file://{folder}/lake'", "cluster: east", "topics:"]
    topics_file.write_text("\n".join([*lines, *(f"  - topic: {topic}" for topic in topics), ""]))
    for name in ("raw", "lake"):
        (folder / name).mkdir()
    env = pipeline_env(topics_file, folder / "spark-conf", scan_seconds=10.0)
    dags = [f"tidemark_ingest__east__{topic}" for topic in topics]
    rows: list[Row] = []
    with ExitStack() as opened:
        server = opened.enter_context(Postgres())
        stacks = {}
        for name, more in (("SQLite", {}), ("PostgreSQL", {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": server.url})):
            import_early(folder / name)
            stacks[name] = opened.enter_context(
                AirflowStack(folder / name, dags=ROOT / "dags", plugins=ROOT / "plugins", env=env | more, unpaused=dags)
            )
        roots = {name: {process.pid: process.name for process in of.processes} for name, of in stacks.items()}
        roots["PostgreSQL"][server.process.pid] = "PostgreSQL"
        for stack in stacks.values():
            for dag in dags:
                wait_until(lambda s=stack, d=dag: _waits(s, d, "wait_and_plan"), what=f"{dag} to wait", interval=0.5)  # type: ignore[misc]
        rows += _idle_rows(f"{QUIET} topics wait", roots)
        for stack in stacks.values():
            stack.client.unpause("tidemark_watch")
        rows += _idle_rows("and the watch runs each minute", roots)
    return rows


def _idle_rows(what: str, roots: Mapping[str, Mapping[int, str]]) -> Iterator[Row]:
    """Figures of deployments by name, of the same minutes; the first minute is not counted."""
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in roots}
    for _ in range(1 + ROUNDS):
        with ExitStack() as looks:
            shares = {name: looks.enter_context(Shares(of)) for name, of in roots.items()}
            time.sleep(IDLE_SECONDS)
        for name, seen in shares.items():
            rounds[name].append(seen.seconds)
    for name, seconds in rounds.items():
        yield from _by_kind(f"{name}, {what}", seconds[1:])


def _emptied(name: str) -> Path:
    folder = HOME / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _rows(name: str, roots: Mapping[int, str], action: Callable[[], None]) -> Iterator[Row]:
    rounds, walls = list[dict[str, float]](), list[float]()
    for _ in range(ROUNDS):
        began = time.monotonic()
        with Shares(roots) as shares:
            action()
        rounds.append(shares.seconds)
        walls.append(time.monotonic() - began)
    yield Row("shares", f"{name}: time", "s", tuple(walls), "until the next run waits; Airflow's own work is counted")
    yield from _by_kind(name, rounds)


def _by_kind(name: str, rounds: Sequence[Mapping[str, float]]) -> Iterator[Row]:
    for kind in sorted({kind for seconds in rounds for kind in seconds}):
        yield Row("shares", f"{name}: {kind}", "CPU-s", tuple(seconds.get(kind, 0.0) for seconds in rounds))


class _World:
    """A topic with a DAG of its own, and five live ones."""

    def __init__(self, root: Path) -> None:
        for name in ("raw", "lake"):
            (root / name).mkdir(parents=True)
        live = [f"live-{number}" for number in range(LIVE)]
        lines = [f"raw: {{url: 'file://{root}/raw'}}", f"lake: 'file://{root}/lake'", "cluster: east", "topics:"]
        lines += ["  - {topic: orders, batch: {age: 0s}}", *(f"  - {{topic: {name}, freshness: 20s}}" for name in live)]
        self.topics_file = root / "topics.yaml"
        self.topics_file.write_text("\n".join(lines) + "\n")
        deployment = load_topics(self.topics_file)
        self._orders = OneTopic(root, deployment, "orders", LIVE + 1)
        self._live = [OneTopic(root, deployment, name, 1 + number) for number, name in enumerate(live)]
        self._packers = [Packer(one.raw, broker=1 + number) for number, one in enumerate(self._live)]
        self._next = 0

    def land(self) -> None:
        """Store a segment, and wait for its commit."""
        n = self._orders.ledger.n
        self._orders.raw.segment([simple(self._orders.raw.partition().end)])
        self._orders.raw.publish()
        wait_until(lambda: self._orders.ledger.n > n, what="the commit", interval=0.2)

    def land_live(self) -> None:
        """Pack records of each live topic, and wait for their commits."""
        before = [one.ledger.n for one in self._live]
        for one, packer in zip(self._live, self._packers, strict=True):
            now = utc_now()
            at = int(now.timestamp() * 1000)
            one.raw.now = one.raw.observed_at = now
            packer.pack([batch(self._next, [Record(number, at, b"key", b"v" * 100) for number in range(RECORDS)])])
            one.raw.partition().tail_end = self._next + RECORDS
            one.raw.publish()
        self._next += RECORDS
        wait_until(
            lambda: all(one.ledger.n > n for one, n in zip(self._live, before, strict=True)),
            what="the commits",
            interval=0.2,
        )


def _waits(stack: AirflowStack, dag: str, task: str) -> bool:
    """Whether the task of the DAG's newest run is deferred."""
    newest = stack.client.get(f"/dags/{dag}/dagRuns", order_by="-run_after", limit=1)["dag_runs"]
    tasks = (found for run in newest for found in stack.client.task_instances(dag, run["dag_run_id"]))
    return (task, "deferred") in [(found["task_id"], found["state"]) for found in tasks]


def _connection(kind: str, host: str, **more: Any) -> dict[str, object]:
    return {"connection_id": "spark_default", "conn_type": kind, "host": host, **more}
