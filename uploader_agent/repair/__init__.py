"""What brings the store back to what it should hold: gaps filled from other replicas, manifests, re-uploads."""
