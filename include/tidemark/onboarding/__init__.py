"""Onboarding of a topic: from Kafka's settings and a sample of records to a change of the topics file.

Needs the extra ``tidemark-kafka[onboarding]``; the command line alone imports it.
"""
