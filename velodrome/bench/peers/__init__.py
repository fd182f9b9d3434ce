"""How others do it, one file for each system: first the environments as a user would write them without Velodrome, then
the libraries that step them or train on them. Read `market_env`, `plain_trading` and `numpy_trading`,
`plain_portfolio`, `vectorisers`, `sb3`, `torchrl`, `torchtrade`, and `cyborg`, which holds mini-CAGE too.
"""
