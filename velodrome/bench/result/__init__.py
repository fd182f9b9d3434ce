"""`velodrome bench result`: wall-clock time from the start of a process to a result, ours and others'.

Read `problems` (what is learnt, which levels count, and who says where a policy stands), `contenders` (who learns it),
`timeline` (one training in a process of its own, watched) and `benchmark` (all of them, as a table and a plot).
"""
