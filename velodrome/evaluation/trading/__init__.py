"""How a policy on single instruments is evaluated, in an account for each. Read `baselines` and `trades`, then
`evaluator`, which puts them together.
"""
