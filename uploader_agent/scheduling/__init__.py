"""What is done when, and by whom: timers, the queue of uploads, the workers, back-off and throttling."""
