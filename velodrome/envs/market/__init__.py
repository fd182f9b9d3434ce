"""What environments on prices share. Read `episodes` (how long they are, where they begin and end), then `account` (its
columns, the cost of fills, statistics).
"""
