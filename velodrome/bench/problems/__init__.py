"""What Velodrome's own environments are measured by: their problem, who else solves it, the proof that all compute the
same, and what is promised. The entries of `envs/catalog.py` name the first three. Read `footprint`, windows per second
and memory; `trading`; `finrl` and `portfolio`; `cage2`; `ar1`, the market with a known optimum, for training.
"""
