"""Champions: the policies that are in use, as files that never change, and the name that points to one of them.

Read `frozen` (the files of one), `registry` (names, history, rows of the store, rollback) and `hooks` (who is told).
"""
