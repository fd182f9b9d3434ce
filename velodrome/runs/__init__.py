"""What happened: a run's configuration, folder, checkpoints and metrics, its rows beside all others, its evaluation.

The page that tells the whole story of a training is session.py. Read the parts that it is made of before it: `versions`
(what a run was made with), `bucket` (folders of runs by URL), `folder`, `checkpoint`, `metrics`, `health` and
`interrupts`; `config` (what a run is told) and `setup` (from that to environments and a learner); `machine` (what a run
takes of it); `store` (rows of all runs), `live` (the terminal while it trains) and `report` (what people read
afterwards); `trained` (a run as it lies in its folder), `evaluate` and `official`; `ranks` (one training in several
processes). Then `session` itself, `together` (several trainings of one command), `run`, which begins one, and what else
is done with runs: `profile`, `folds` and `walk_forward`.
"""
