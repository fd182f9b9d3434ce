"""Many trainings under one budget: a queue in the store, processes under leases, ends that are told apart.

Read `job` (what a training that was submitted is, and how it can end), `queue` (its rows: who may change what),
`machine` (this machine and the processes on it), `budget` (what fits, and whose turn it is), `worker` (the processes of
a training), `executor` (how they are started and stopped), `executors` (on other
machines), `scheduler` (the loop that does it), `studies` (trials
become trainings), `service` (what people call: `AgentTrainingService`), `tuning` (`vd.tune`) and `listing` (what the
commands show).
"""
