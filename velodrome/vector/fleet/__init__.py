"""How many environments, watched and shared. Read `step_times`, `monitor_report`, `episode_file`, `ended_episodes` and
`monitor`, which watches; `autoscale`, which finds how many to play; `specification`, `budget` and `pool`, which lends
them to several trainings.
"""
