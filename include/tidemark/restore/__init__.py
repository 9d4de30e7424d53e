"""Restores a range of a topic's history from the remote tier into a topic of any cluster: ``tidemark restore``.

    ready = threading.Event()
    with (
        Target(request.target, request.group, {"bootstrap_servers": "broker-1:9092"}) as target,
        RemoteTier(storage, committed=request.committed, on_ready=ready.set) as tier,
    ):
        report = verified(Restore(request, tier, target, ready).run(), target)

Promises: each record of the range lies in the same partition of the target once, in order, with its key, value, headers
and timestamp, even if the process is killed at any point and started again; or an error names the offset that was
reached. ``docs/consumer.md`` describes how, and the properties that cannot be kept.

Relies on: no other program writes to the target (one that does is detected); the target's consumer group, which has the
progress, exists while a restore may be resumed (``offsets.retention.minutes``, by default 7 days).
"""
