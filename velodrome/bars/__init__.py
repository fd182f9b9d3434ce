"""Outside data in: readers of files and frames, synthetic generators, and checks that refuse or report what they find.

Read `summary` (how things show themselves), `frame`, what bars are, and `timeframe`, their sizes. Then a file's way:
`columns`, `rules`, `gaps`, `makes` (what makers of files do in their own ways), `files`, a frame's: `dataframes`, and
what they share: `values`, `inspection`, `read`. Then `check`, the report on what was found, and `factors` and
`synthetic`, bars that are made.
"""

from velodrome.bars.check import check_bars
from velodrome.bars.frame import Bars, Series
from velodrome.bars.read import read_bars
from velodrome.bars.synthetic import synthetic_bars

__all__ = ["Bars", "Series", "check_bars", "read_bars", "synthetic_bars"]
