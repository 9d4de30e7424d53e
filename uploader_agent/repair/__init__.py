"""Repairs of the store: gaps filled from other replicas, manifests rebuilt, segments uploaded again."""
