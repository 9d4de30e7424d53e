"""Onboarding of a topic: what Kafka and a sample of records say, and the change of the topics file that follows.

Needs the extra ``tidemark-kafka[onboarding]``; the command line alone imports it.
"""
