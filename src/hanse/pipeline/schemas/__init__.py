"""Schemas of the datasets: one per module, as a table of columns or an Arrow schema."""
