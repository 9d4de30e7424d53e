"""Raw segments to Parquet under a Delta log: Spark schedules, the Python workers convert, the driver publishes."""
