"""What a policy is worth on data it never saw. An environment's entry names its evaluator, and the general one serves
any other.

Read `intervals` and `sharpe` (how sure a figure is), `play` (a policy plays a split, whose pieces are one account, or
episodes), `measures` (what its curve amounts to), `trades` and `baselines` (what a trade is, what to beat), `forecast`
(the regression among them), `evaluator` (what one environment has to say), then the rooms of our own environments,
`trading`, `portfolio` and `cage2`; `breakdown` (months, falls, the market's part, costs), `named_policy` (which
checkpoint a result is about), `training_seeds` (several agents as one), `result` (an evaluation as a table and files),
`comparison` (an agent beside its baselines), `episodes` and `evaluate` (the two kinds of evaluation), and `validation`
(the quick look during training, and which checkpoint it keeps).
"""
