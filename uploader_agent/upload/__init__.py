"""One segment: whether it may be uploaded, whether its bytes are valid, and how it reaches the store."""
