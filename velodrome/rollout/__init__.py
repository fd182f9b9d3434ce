"""A policy in many worlds gives tensors. Read `observation`, what a policy sees, and `flattening`; `launch`,
`running_sums`, `cuda_rows` and `advantages`; `worlds`, environments as a learner sees them; `storage`, one rollout;
`moments`; `sum_tree` and `replay`, the buffer of DQN; `phases`, where the time goes.
"""
