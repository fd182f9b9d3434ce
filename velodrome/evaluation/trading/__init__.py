"""How a policy on single instruments is evaluated. Read `play` (an account for each), `baselines` and `trades`, then
`evaluator`, which puts them together.
"""
