"""The agent's metrics, for Prometheus. No label names a partition: brokers have thousands.

The help of each metric states its meaning and its unit; ``docs/metrics.md`` is generated from them.
"""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.process_collector import ProcessCollector

from uploader_agent import __version__

PREFIX = "tidemark_agent"

_LATENCY = (0.05, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    """All metrics of one agent, in a registry of their own; ``labels`` has each metric's label names."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.labels: dict[str, tuple[str, ...]] = {PREFIX: ("version",)}
        ProcessCollector(registry=self.registry)
        Info(PREFIX, "The agent's version.", registry=self.registry).info({"version": __version__})

        # led partitions and their lag
        self.led = self._gauge("led_partitions", "Partitions that this broker leads and the agent uploads.")
        self.lag_offsets = self._gauge(
            "lag_offsets", "Offsets below the log end of led partitions that neither offset.wm nor a pack covers yet."
        )
        self.lag_segments = self._gauge("lag_segments", "Rotated segments of led partitions that are not uploaded.")
        self.lag_bytes = self._gauge("lag_bytes", "Bytes of the rotated segments that are not uploaded.")
        self.lag_seconds = self._gauge(
            "lag_seconds", "Seconds since the rotation of the oldest segment that is not uploaded; 0 if there is none."
        )
        self.watermark_age = self._gauge(
            "watermark_age_seconds",
            "Longest time in seconds since an offset.wm moved, over led partitions with segments not uploaded.",
        )
        self.unstored_age = self._gauge(
            "unstored_age_seconds",
            "Seconds for which the oldest byte on the disk has waited to be stored, in rotated segments (rotated) and "
            "in active ones (tail).",
            ["kind"],
        )
        self.overdue = self._gauge(
            "overdue_seconds",
            "Seconds by which the oldest byte that is not stored is late: a rotated segment is due at once, a tail "
            "after a third of its freshness, else after tail_after without an append.",
            ["kind"],
        )

        # fetching
        self.fetched_bytes = self._counter("fetched_bytes", "Bytes of batches fetched from brokers into the spool.")
        self.fetch_throttled = self._counter("fetch_throttled_seconds", "Seconds for which brokers throttled fetching.")
        self.stopped_partitions = self._gauge(
            "stopped_partitions", "Partitions, and topics never followed, that wait for a person.", ["reason"]
        )
        self.retention_left = self._gauge(
            "retention_left_ratio",
            "Least share of a topic's retention that is left before brokers remove what was not fetched; 1 if all was.",
        )
        self.spool_bytes = self._gauge("spool_bytes", "Bytes of the segments in the spool.")

        # uploads
        self.segments = self._counter("segments", "Segments uploaded to the store, by the manifest's state.", ["state"])
        self.bytes = self._counter("log_bytes", "Bytes of .log files uploaded to the store.")
        self.upload_seconds = self._histogram(
            "upload_seconds", "Seconds from the start of a segment's upload to its manifest."
        )
        self.rotation_seconds = self._histogram(
            "rotation_to_watermark_seconds", "Seconds from a segment's last append to the offset.wm that covers it."
        )
        self.waiting = self._gauge("waiting_jobs", "Segments and surveys that wait for a worker.")
        self.running = self._gauge("running_jobs", "Segments and surveys that are being worked on.")
        self.upload_limit = self._gauge(
            "upload_limit",
            "Jobs that may run concurrently now: upload.concurrency, or fewer after the store answered SlowDown.",
        )

        # packs
        self.packs = self._counter("packs", "Packs stored.")
        self.packed_ranges = self._counter("packed_ranges", "Ranges of partitions that heads name in packs.")
        self.packed_bytes = self._counter("packed_bytes", "Bytes of record batches in these ranges.")
        self.pack_seconds = self._histogram(
            "pack_seconds", "Seconds that the packs and the head of one bucket took in a tick."
        )
        self.oldest_unpacked = self._gauge(
            "oldest_unstored_seconds",
            "Age in seconds of the oldest byte that is in no pack and no segment of the store, over led partitions of "
            "topics with freshness.",
        )
        self.packs_stalled = self._gauge(
            "packs_stalled_seconds",
            "Longest time in seconds for which nothing was packed in a bucket, though something waits to be; 0 if "
            "nothing waits.",
        )
        self.damaged_heads = self._gauge(
            "damaged_heads", "Heads of this broker that something else has damaged, and that are not made again yet."
        )

        # failures
        self.failures = self._counter(
            "failures", "Jobs that failed and will be tried again, by kind of error.", ["kind"]
        )
        self.store_requests = self._counter(
            "store_requests", "Requests sent to the store, by operation.", ["operation"]
        )
        self.store_refused = self._gauge(
            "store_refused", "1 while the store refuses requests (credentials, policy, missing bucket), otherwise 0."
        )
        self.fenced = self._gauge(
            "fenced_partitions",
            "Led partitions with an offset.wm that states a higher leader epoch than the broker does.",
        )
        self.foreign = self._counter(
            "foreign_epochs",
            "Versions of offset.wm that were replaced because the cluster never assigned their leader epoch.",
        )
        self.truncated = self._counter(
            "truncated_logs", "Uploaded logs that lost their end in an election: the partition's next offset went back."
        )
        self.corrupt = self._counter("corrupt_segments", "Segments that failed their check and were kept as .corrupt.")

        # segments kept from retention
        self.held_segments = self._gauge("held_segments", "Segments that the agent holds until they are uploaded.")
        self.held_bytes = self._gauge(
            "held_bytes",
            "Bytes on the disk that only the agent still holds, because the broker has already deleted the files.",
        )
        self.unheld_segments = self._gauge(
            "unheld_segments", "Segments that wait for their upload and could not be held: retention may delete them."
        )
        self.evicted = self._counter(
            "yielded_segments", "Held segments that were evicted to stay within the limits of hold."
        )

        # gaps
        self.gaps = self._gauge("gaps", "Gaps of led partitions whose offsets are lost, and not acknowledged.")
        self.gap_offsets = self._gauge("gap_offsets", "Offsets in these gaps.")
        self.remote_tier_offsets = self._gauge(
            "remote_tier_offsets",
            "Offsets in gaps that only Kafka's own remote tier has; their partitions stand still.",
        )
        self.filled = self._counter("filled_segments", "Segments uploaded from a replica, or fetched, to fill a gap.")
        self.remote_tier_bytes = self._counter(
            "remote_tier_bytes", "Bytes of batches that brokers read from Kafka's own remote tier to fill gaps."
        )

        # surroundings
        self.scans = self._counter("scans", "Full looks at the log directories.")
        self.scan_seconds = self._histogram("scan_seconds", "Seconds that a full look at the log directories took.")
        self.missed_events = self._counter(
            "missed_events", "Rotations that only a scan found, because no file event reported them."
        )
        self.log_dirs_unreadable = self._gauge(
            "log_dirs_unreadable", "Log directories that could not be read at the last try."
        )
        self.logs_unreadable = self._gauge(
            "logs_unreadable",
            "Partitions that this broker leads by the metadata, with a directory that has been missing or unreadable "
            "for 20 s.",
        )
        self.broker_reachable = self._gauge(
            "broker_reachable", "1 if the broker answered the last question, within 10 s; otherwise 0."
        )
        self.metadata_seconds = self._histogram(
            "metadata_seconds", "Seconds that the broker took to say which partitions it leads."
        )
        self.clock_skew = self._gauge(
            "clock_skew_seconds",
            "Seconds that this host's clock is ahead of the store's, negative if it is behind; 0 below 2 s.",
        )
        self.index_written = self._gauge(
            "index_written_timestamp_seconds", "When the watermark index was last written, in seconds since 1970."
        )
        self.reloads = self._counter("reloads", "Times that SIGHUP made the agent read its file again.", ["result"])
        for result in ("applied", "refused"):
            self.reloads.labels(result)  # shown as 0: an alert on the increase would miss the first one otherwise

    def _counter(self, name: str, help_: str, labels: Sequence[str] = ()) -> Counter:
        self.labels[f"{PREFIX}_{name}"] = tuple(labels)
        return Counter(f"{PREFIX}_{name}", help_, labels, registry=self.registry)

    def _gauge(self, name: str, help_: str, labels: Sequence[str] = ()) -> Gauge:
        self.labels[f"{PREFIX}_{name}"] = tuple(labels)
        return Gauge(f"{PREFIX}_{name}", help_, labels, registry=self.registry)

    def _histogram(self, name: str, help_: str) -> Histogram:
        return Histogram(f"{PREFIX}_{name}", help_, buckets=_LATENCY, registry=self.registry)
