"""Brokersets: named subsets of a cluster's brokers, placement in them, and how their load changes as a broker goes."""
