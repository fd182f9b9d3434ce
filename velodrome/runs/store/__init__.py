"""Rows of all runs in one database, and the ways in which metrics get there and elsewhere.

Read `schema` (the tables), `store` (reading and writing them), `sinks` (where a run's metrics go: the store, a file,
TensorBoard, Weights & Biases) and `metrics_file` (a run's metrics as a CSV or Parquet file).
"""
