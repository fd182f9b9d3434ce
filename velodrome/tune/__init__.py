"""Many runs: studies, promotion, the paper loop.

Read `overfitting` (what choosing the best of many trials is worth).
"""
