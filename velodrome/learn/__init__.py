"""From tensors to better policies, one page per algorithm.

Read `config`, the settings; `actions`, `networks` and `policy`, what a learner improves; `engines`, how it takes a
step; `learner`, what surrounds every algorithm, and `leader`, one in several processes; `imitation`, how a policy
begins as a rule; `ppo`, then `replaying` with `dqn` and `sac`, the pages; `acting`, `ensembles`, `program` and
`policy_files`, the use of a policy that has learnt; `catalog`, the algorithms by name.
"""
