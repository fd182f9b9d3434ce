"""Many runs: studies, populations, promotion, the paper loop.

Read `space` (what is searched), `trial` (what a trial is, and the settings of a study), `worth` (what noisy trainings
say of settings, and which trials are hopeless), `search` (what is tried next), `course` (the whole policy of a study,
without processes or rows), `study` (its rows), `outcome` (what a training is worth), `beginning` (how a study begins,
what it must keep, and which prices it judges by), `overfitting` (what choosing the best of many trials is worth),
`verdict` (the winner's one look at the test split), `view` (a study as one looks at it), `listing` (what is shown of
it), `report` (its page and charts), `population` (agents of which the worst go on as the best do), `champions`
(policies in use, as files that never change, and the names that point to them), `promotion` (what a candidate has to
pass) and `paper` (a champion that follows a feed). `service.studies` carries studies out.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from velodrome.registry import load


class _CallableModule(types.ModuleType):
    """This folder has the name of the function `vd.tune`; whichever of both Python finds under it can be called."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Begin, join or continue a study, as `velodrome.service.tuning.tune` says."""
        return load("velodrome.service.tuning:tune")(*arguments, **options)


sys.modules[__name__].__class__ = _CallableModule
