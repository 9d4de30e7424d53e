"""What the agent counts, in Prometheus' terms. Nothing is labelled by partition: brokers have thousands."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_LATENCY = (0.05, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    """All metrics of one agent, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        prefix, registry = "tidemark_agent", self.registry
        self.segments = Counter(
            f"{prefix}_segments",
            "Segments brought into the store, by the manifest's state.",
            ["state"],
            registry=registry,
        )
        self.bytes = Counter(f"{prefix}_log_bytes", "Bytes of .log files brought into the store.", registry=registry)
        self.upload_seconds = Histogram(
            f"{prefix}_upload_seconds",
            "Seconds from a segment's start to its manifest.",
            buckets=_LATENCY,
            registry=registry,
        )
        self.lag_seconds = Histogram(
            f"{prefix}_rotation_to_watermark_seconds",
            "Seconds from a segment's last append to the offset.wm that covers it.",
            buckets=_LATENCY,
            registry=registry,
        )
        self.failures = Counter(
            f"{prefix}_failures",
            "Jobs that failed and will be tried again, by kind of error.",
            ["kind"],
            registry=registry,
        )
        self.led = Gauge(
            f"{prefix}_led_partitions", "Partitions that this broker leads and the agent uploads.", registry=registry
        )
        self.waiting = Gauge(
            f"{prefix}_waiting_jobs", "Segments and surveys that wait for a worker.", registry=registry
        )
        self.gap_offsets = Gauge(
            f"{prefix}_gap_offsets", "Offsets that are missing in the store and not acknowledged.", registry=registry
        )
        self.broker_reachable = Gauge(
            f"{prefix}_broker_reachable", "1 if the broker answered when last asked, else 0.", registry=registry
        )
        self.index_written = Gauge(
            f"{prefix}_index_written_timestamp_seconds", "When the watermark index was last written.", registry=registry
        )
