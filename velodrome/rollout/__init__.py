"""A policy in many worlds gives tensors. Read `observation`, what a policy sees, and `flattening`; `launch`,
`both_targets`, `cuda_rows` and `advantages`; `disturbance`, noise and masks on what is seen in training; `ranks`,
several processes that learn together; `worlds`, environments as a learner sees them; `storage`, one rollout; `moments`;
`sum_tree` and `replay`, the buffer of DQN; `phases`, where the time goes.
"""
