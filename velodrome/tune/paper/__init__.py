"""The paper loop: a champion follows a feed of bars, bar by bar, and places no orders anywhere.

Read `feed` (bars as they come), `tape` (those that were taken), `seat` (an account that a champion runs, one bar at a
time), `desk` (all accounts of a champion, who takes over, and what a backtest of the same bars gives), `memory` (the
folder that a loop goes on from), `loop` and `view` (the terminal meanwhile).
"""
