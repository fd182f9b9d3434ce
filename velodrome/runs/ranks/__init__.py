"""One training in several processes. Read `launch` (how torchrun starts them, and how a training goes on after it
started them anew) and `following` (what all but the first do). What a learner does about it is in learn/leader.py.
"""
