"""Stores of S3's interface, by botocore."""
