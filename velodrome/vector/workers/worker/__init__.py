"""One worker process: the memory it shares with its parent, how the two wake each other, and either side's code. Read
`shared_memory`, `wakeups`, `protocol` (the words and arrays that both know), `worker_side`, `parent_side`.
"""
