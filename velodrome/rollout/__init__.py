"""A policy in many worlds gives tensors. Read `observation`, what a policy sees, and `flattening`; `launch`,
`running_sums`, `noise`, `cuda_rows` and `advantages`; `disturbance`, noise and masks on what is seen in training;
`worlds`, environments as a learner sees them; `storage`, one rollout; `moments`; `sum_tree` and `replay`, the buffer of
DQN; `phases`, where the time goes.
"""
