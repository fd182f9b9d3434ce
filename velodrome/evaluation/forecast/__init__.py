"""The forecaster: what a few lines of regression make of the same inputs, as a baseline that an agent should beat.

Read `regression` (ridge and logistic, the penalty chosen by walk-forward), `threshold` (when a forecast is worth its
costs), then `forecast` (both on the training split of a market, and the policy that follows them) and `teaching` (how
an agent begins as such a policy). `halves` makes the agents of an ensemble differ.
"""
