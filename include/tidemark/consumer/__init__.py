"""The tiered consumer: kafka-python's ``KafkaConsumer`` over Kafka and the remote tier.

The extra ``tidemark-kafka[consumer]`` has its dependencies. Its design: docs/consumer-design.md.
"""
