"""The upload of a segment: its eligibility, the validation of its bytes, and its way to the store."""
