"""A partition as it lies in the store: its objects, manifests, watermark, gaps and incarnations."""
