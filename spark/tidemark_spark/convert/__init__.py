"""From raw segments to rows of Parquet files and evidence, in a worker."""
