"""One run of a job on the driver, from its plan to its commit: exactly once, despite killed processes."""
