"""A range of a topic's history from the remote tier back into a topic of any cluster: ``tidemark restore``.

    ready = threading.Event()
    with (
        Target(request.target, request.group, {"bootstrap_servers": "broker-1:9092"}) as target,
        RemoteTier(storage, committed=request.committed, on_ready=ready.set) as tier,
    ):
        report = verified(Restore(request, tier, target, ready).run(), target)

Promises: each record of the range lies in the same partition of the target once, in order, with key, value, headers
and timestamp as they were, also after the process was killed at any point and started again; or an error that says
where it stands. How, and what cannot be kept: ``docs/consumer.md``.

Relies on: nobody else writing to the target, which is detected; the target's consumer group with the progress being
there as long as a restore may be resumed (``offsets.retention.minutes``, 7 days unless the cluster says otherwise).
"""
