"""Rows of all runs in one database, and the ways in which metrics get there and elsewhere.

Read `work` (the tables of what people ask for) and `schema` (all tables), `rows` (what is in them), `fence` (who may
write), `outlines` (of long curves), `store` (reading and writing them), `looks` (the ledger of tests), `sinks` (where a
run's metrics go: a file, TensorBoard, Weights & Biases), `from_folder` (the rows of a run as its folder has them),
`rebuild` (of all runs), `mirror` (while it trains) and `metrics_file` (a run's metrics as a CSV or Parquet file).
"""
