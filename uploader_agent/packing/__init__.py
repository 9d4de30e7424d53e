"""Packing of led partitions in ticks, and the maintenance of this broker's heads."""
