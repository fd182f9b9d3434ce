"""Rows of all runs in one database, and the ways in which metrics get there and elsewhere.

Read `schema` (the tables), `store` (reading and writing them), `sinks` (where a run's metrics go: a file, TensorBoard,
Weights & Biases), `from_folder` (the rows of a run as its folder has them), `rebuild` (of all runs), `mirror` (while it
trains) and `metrics_file` (a run's metrics as a CSV or Parquet file).
"""
