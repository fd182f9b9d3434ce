"""From tensors to better policies, one page per algorithm.

Read `config`, what a learner is told; `actions`, `networks` and `policy`, what it improves; `optimiser` and `engines`,
how it takes a step; `learner`, what surrounds every algorithm; `ppo` and `dqn`, the pages; `acting` and `policy_files`,
what becomes of a policy that has learnt; `catalog`, the algorithms by name.
"""
