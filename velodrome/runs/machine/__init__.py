"""What a run takes of the machine. Read `use` (how busy it is), `memory` (what to do when it runs out) and `plan` (how
much is needed, and how many environments fit).
"""
