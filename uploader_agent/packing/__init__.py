"""When led partitions are packed, and what becomes of the entries of this broker's heads."""
