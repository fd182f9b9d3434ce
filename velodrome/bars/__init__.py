"""Outside data in: file readers, synthetic generators, and the checks that refuse or report what they find.

Read `frame`, what bars are, and `timeframe`, their sizes. Then a file's way: `columns`, `rules`, `files`, `values`,
`inspection`, `read`. Then `check`, the report on files, and `factors` and `synthetic`, bars that are made.
"""

from velodrome.bars.check import check_bars
from velodrome.bars.frame import Bars, Series
from velodrome.bars.read import read_bars
from velodrome.bars.synthetic import synthetic_bars

__all__ = ["Bars", "Series", "check_bars", "read_bars", "synthetic_bars"]
