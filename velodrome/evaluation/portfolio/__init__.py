"""How a policy on a basket is evaluated, in one account. Read `account` (what each instrument gained and cost),
`baselines` and `trades`, then `evaluator`, which puts them together.
"""
