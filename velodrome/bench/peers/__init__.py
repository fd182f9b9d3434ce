"""How others do it: first the environments as a user would write them without Velodrome, then the libraries that step
them or train on them. Read `plain_markets` and `numpy_trading`; `vectorisers`, `sb3`, `torchrl`, `torchtrade`, `finrl`,
`pufferlib`, `pufferl`, `jax_ppo`; and `cyborg`, which holds mini-CAGE too.
"""
