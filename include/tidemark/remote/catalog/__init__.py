"""Where each offset and time of a partition lies in the store. Reads manifests, indexes and batch headers only."""
