"""The leak check: whether anything that is built knows the future, and how far that is certain.

Read `report`, what comes out of it; `alterations` and `probe`, how the future is taken away from one function; `cuts`,
where. Then the ways of finding suspicious rows: `reach` for features with a bounded look-back, `signs` for the others,
`memory` for answers that do not come from the bars, `fitted` for constants. `functions` gives them their turns, and
`check` looks at everything that is built.
"""

from velodrome.tables.leaks.check import check_leaks, find_leaks
from velodrome.tables.leaks.report import Coverage, Leak, LeakReport, rich_table

__all__ = ["Coverage", "Leak", "LeakReport", "check_leaks", "find_leaks", "rich_table"]
