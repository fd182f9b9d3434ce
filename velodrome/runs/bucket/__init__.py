"""Folders of runs by URL, such as s3://bucket/runs. Read `place` (what a URL stands for on this machine, and how files
get there and back) and `upload` (a thread that sends what a run writes while it trains).
"""
