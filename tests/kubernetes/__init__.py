"""The chart in a real API server and, where one can run, on a node: `make test-kubernetes`."""
