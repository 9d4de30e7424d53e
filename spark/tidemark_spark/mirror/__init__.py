"""Lists a table's files in catalogs of Iceberg tables, a snapshot for each commit. The Delta log stays the truth."""
