"""The tiered consumer: kafka-python's ``KafkaConsumer`` over Kafka and the remote tier.

The extra ``tidemark[consumer]`` has what it needs. How it keeps its promise: docs/consumer-design.md.
"""

from tidemark.consumer.consumer import TieredConsumer
from tidemark.consumer.modes import Mode, OnGap, Tier

__all__ = ["Mode", "OnGap", "Tier", "TieredConsumer"]
