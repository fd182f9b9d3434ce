"""`velodrome bench scale`: how speed grows with cores, processes and ranks.

Read `ranks` (one training in several processes), then `benchmark` (the whole, as a table and a plot).
"""
