"""`velodrome bench generalise`: how much of what can be known an agent keeps on bars it never saw, by amount of data.

Read `references` (the best that can be done where no formula says it), `trainings` (one training of one contender) and
`benchmark` (all of them, in processes, as a table and a plot).
"""
