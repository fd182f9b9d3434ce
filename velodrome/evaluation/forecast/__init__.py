"""The forecaster: what a few lines of regression make of the same inputs, as a baseline that an agent should beat.

Read `inputs` (what a regression is shown), `regression` (ridge and logistic, the penalty chosen by walk-forward),
`threshold` (when a forecast is worth its costs), `halves` (of the rows, which make the agents of an ensemble differ),
then `forecast` (all of it on the training split of a market, and the policy that follows), `teaching` (how an agent
begins as such a policy) and `kept` (what was taught, for others that begin alike).
"""
