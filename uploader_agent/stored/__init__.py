"""A partition in the store, as its writer needs it: objects, manifests, watermark, gaps and incarnations."""
