"""The schedule of uploads: timers, the queue, the workers, back-off and throttling."""
