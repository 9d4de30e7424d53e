"""A partition in the store: its objects, manifests, watermark, gaps and incarnations."""
