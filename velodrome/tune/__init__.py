"""Many runs: studies, promotion, the paper loop.

Read `overfitting` (what choosing the best of many trials is worth), `champions` (policies in use, as files that never
change, and the names that point to them), `promotion` (what a candidate has to pass) and `paper` (a champion that
follows a feed).
"""
