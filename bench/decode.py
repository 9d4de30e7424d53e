"""Decode alone: segments in memory to Arrow columns in one process, checksums verified, in MB of values.

With ``--peer PATH`` beside a decoder in C, alternating: a folder with ``kdec.c``, which is compiled here, and
``kdec.py`` with ``scan``, ``crc_check`` and ``decode_segment``. It checks checksums as well.
"""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from bench.data import HOME, Data, Topic
from bench.measure import MB, Row
from tidemark.decode import decode_batches, scan_headers

REPETITIONS: Final = 5
WINDOW_BYTES: Final = 64 << 20
"""How much of a topic is decoded: whole batches from the start of one of its segments."""

Decode = Callable[[NDArray[np.uint8]], tuple[int, int]]
"""A segment to columns: records, and bytes of their values."""


def measure(made: Data, topics: Sequence[Topic], peer: Path | None) -> list[Row]:
    """Each topic; the first round is dropped."""
    decoders: dict[str, Decode] = {"Tidemark": _ours}
    compiler = shutil.which("cc")
    if peer is not None and compiler is not None:
        decoders["the peer in C"] = _peer(peer, compiler)
    rows: list[Row] = []
    for topic in topics:
        segment = segment_of(made, topic)
        seconds: dict[str, list[float]] = {name: [] for name in decoders}
        found = {name: decode(segment) for name, decode in decoders.items()}
        if len(set(found.values())) != 1:
            raise RuntimeError(f"{topic.name}: the decoders differ: {found}")
        for _ in range(REPETITIONS):
            for name, decode in decoders.items():
                started = time.process_time()
                decode(segment)
                seconds[name].append(time.process_time() - started)
        rows += _rows(topic, found["Tidemark"][1] / MB, seconds)
    return rows


def _rows(topic: Topic, size: float, seconds: dict[str, list[float]]) -> list[Row]:
    part = f"decode {topic.codec}, values of {topic.size} B"
    note = f"{size:.0f} MB of values, one process, CPU seconds, warm"
    rows = [Row(part, name, "MB/CPU-s", tuple(size / one for one in found), note) for name, found in seconds.items()]
    if len(seconds) > 1:
        ours, theirs = seconds.values()
        ratios = tuple(b / a for a, b in zip(ours, theirs, strict=True))
        rows.append(Row(part, "Tidemark beside the peer (aim 0.9)", "ratio", ratios, "of the same round"))
    return rows


def segment_of(made: Data, topic: Topic) -> NDArray[np.uint8]:
    """The first bytes of the topic's largest segment, up to the end of a batch."""
    log = max(made.raw(topic).rglob("*.log"), key=lambda path: path.stat().st_size)
    with log.open("rb") as file:
        data = file.read(WINDOW_BYTES)
    last = scan_headers(data, log.name, int(log.stem), allow_partial_tail=True)[-1]
    return np.frombuffer(data, np.uint8)[: int(last["position"] + last["size"])]


def _ours(segment: NDArray[np.uint8]) -> tuple[int, int]:
    records = size = 0
    headers = scan_headers(segment, "segment", 0)
    for rows in decode_batches(segment, headers, name="segment", partition=0, incarnation=0):
        records, size = records + len(rows), size + _bytes(rows.column("kafka_value"))
    return records, size


def _peer(folder: Path, compiler: str) -> Decode:
    copy = HOME / "peer" / "kdec"
    shutil.copytree(folder, copy, dirs_exist_ok=True)
    subprocess.run([compiler, "-O3", "-shared", "-fPIC", "-o", copy / "libkdec.so", copy / "kdec.c"], check=True)
    sys.path.insert(0, str(copy.parent))
    kdec = importlib.import_module("kdec.kdec")

    def decode(segment: NDArray[np.uint8]) -> tuple[int, int]:
        headers, _, _ = kdec.scan(segment)
        kdec.crc_check(segment, headers)
        records = size = 0
        for rows in kdec.decodesegment(segment, hd=headers):
            records, size = records + len(rows), size + _bytes(rows.column("value"))
        return records, size

    return decode


def _bytes(column: object) -> int:
    """Bytes of a binary column's values."""
    offsets = np.frombuffer(column.buffers()[1], np.int32)  # type: ignore[attr-defined]
    return int(offsets[len(column)] - offsets[0])  # type: ignore[arg-type]
