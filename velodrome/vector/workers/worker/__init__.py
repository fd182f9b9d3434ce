"""One worker process: the memory it shares with its parent, how the two wake each other, and the code of both sides.
Read `shared_memory`, `wakeups`, `protocol` (the words and arrays that both sides know), `worker_side`, `starting`,
`parent_side`.
"""
