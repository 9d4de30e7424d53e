"""What became of every offset of a topic, worked out from the store for a person who asks."""
