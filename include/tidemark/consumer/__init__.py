"""The tiered consumer: kafka-python's ``KafkaConsumer`` over Kafka and the remote tier.

The extra ``tidemark-kafka[consumer]`` has what it needs. How it keeps its promise: docs/consumer-design.md.
"""
