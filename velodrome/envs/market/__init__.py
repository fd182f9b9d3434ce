"""What environments on prices share. Read `episodes` (where they begin and end), then `account` (columns, costs,
statistics).
"""
