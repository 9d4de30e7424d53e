"""The watermark index: the object in which this broker states the stored offsets of its partitions to readers."""
