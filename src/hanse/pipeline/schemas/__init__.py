"""The contracts of rows: one a file, as an Arrow schema and the StructType derived from it."""
