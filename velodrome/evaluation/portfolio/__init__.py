"""How a policy on a basket is evaluated. Read `recording` (what each step traded), `play` (one account, and what each
instrument brought), `baselines` and `trades`, then `evaluator`, which puts them together.
"""
