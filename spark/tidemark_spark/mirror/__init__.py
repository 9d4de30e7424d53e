"""Lists the files of a table in catalogs of Iceberg tables, a snapshot for each commit. The Delta log stays the truth."""
