"""docker-compose.yaml with a container engine: `make test-containers`."""
