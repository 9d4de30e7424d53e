"""Locates each offset and time of a partition in the store. Reads only manifests, indexes and batch headers."""
