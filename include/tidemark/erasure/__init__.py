"""The values of erasure: a request has digests of them under a secret, and workers find the rows that have them."""
