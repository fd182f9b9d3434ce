"""Several trainings of one command: in processes side by side, or as members of a group.

Read `processes`, how many and how they are watched and stopped, before `group`, whose members differ in their seed.
"""
