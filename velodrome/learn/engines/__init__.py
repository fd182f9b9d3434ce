"""The same update of PPO by three engines. Read `formulas`, the arithmetic that two of them share; `optimiser`, the
step down a gradient; `autograd`, the plain one, which checks the others; `cpu` and `gpu`; `choice`, which says which of
them serves."""
