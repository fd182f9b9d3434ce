"""How a policy on single instruments is evaluated, in an account for each. Read `baselines`,
`teacher` (the forecaster as something to imitate) and `trades`, then `evaluator`, which puts them together.
"""
