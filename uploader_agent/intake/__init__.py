"""A replica of our own: fetches raw batches from a cluster's brokers, and keeps them in a spool."""
