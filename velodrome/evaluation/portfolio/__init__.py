"""How a policy on a basket is evaluated, in one account. Read `account` (what each instrument gained and cost),
`forecasts` (weights chosen on the training split), `baselines` and `trades`, then `evaluator`, which puts them
together, and `teacher` (such weights as actions, for an agent to begin with).
"""
