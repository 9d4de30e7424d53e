"""The fate of every offset of a topic, worked out from the store on request."""
