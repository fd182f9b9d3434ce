"""What a run takes of the machine.

Read `gpus` and `use` (how busy it is), `disk` (whether it has room), `resources` (that as metrics), `memory` (what to
do when it runs out), `plan` (how much is needed, and how many environments fit) and `recommendation` (`vd.recommend`).
"""
