"""The same update of PPO by three engines. Read `formulas`, the arithmetic that two of them share; `autograd`, the
plain one, which checks the others; `cpu` and `gpu`; `choice`, which says which of them serves."""
