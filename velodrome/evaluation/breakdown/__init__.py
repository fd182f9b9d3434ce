"""What a result is made of. Read `curves` (its months, its falls, its rolling Sharpe ratio), `benchmark` (the market's
part of it) and `costs` (what they did to it).

All figures are of the accounts together. Several seeds are measured one by one and averaged.
"""
