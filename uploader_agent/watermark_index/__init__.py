"""The object by which this broker tells readers how far each of its partitions is stored."""
