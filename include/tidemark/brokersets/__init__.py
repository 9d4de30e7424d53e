"""Brokersets: named subsets of a cluster's brokers, placement in them, and their load with and without a broker."""
