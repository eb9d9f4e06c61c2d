"""Tables with versions: snapshots of Delta and Iceberg tables, read as Parquet files."""
