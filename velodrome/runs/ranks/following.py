"""What a rank other than the first does: whatever that one tells, until the training has ended."""

from __future__ import annotations

import functools
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

from velodrome.runs import setup
from velodrome.runs.config.run_config import RunConfig
from velodrome.runs.interrupts import HANGUP, SIGNALS
from velodrome.runs.ranks.launch import forget
from velodrome.runs.trained import Run
from velodrome.vector.cores import is_rank

if TYPE_CHECKING:
    from velodrome.rollout.ranks import Ranks

P = ParamSpec("P")


def follow(ranks: Ranks, market: Any) -> Path:
    """Do what the first rank tells until it has ended; return the folder of the run.

    market: what the program was given, in place of what the configuration says.
    """
    from velodrome.learn.leader import lead, obey

    if threading.current_thread() is threading.main_thread():
        # Ctrl-C and the like reach all processes: the first rank saves, and tells the others to stop.
        for number in (*SIGNALS, HANGUP):
            signal.signal(number, signal.SIG_IGN)
    built: tuple[Any, Any] = (None, None)  # the last market, and what it was built from
    while not isinstance(told := ranks.sent(), Path):
        if told is None:  # the first rank could not begin, and has told why
            raise SystemExit(1)
        config, num_envs = told
        assert isinstance(config, RunConfig)
        if market is None and built[1] != (config.env, config.market):
            built = setup.build_market(config), (config.env, config.market)
        own = built[0] if market is None else market
        with setup.learning_worlds(config, own, config.usable_device(), None, num_envs, True) as worlds:
            obey(lead(setup.make_learner(config, worlds)), ranks)
    return told


def in_all_ranks(function: Callable[P, Run]) -> Callable[P, Run]:
    """Let the first rank do what a function does, and the others follow; without ranks it is the function."""

    @functools.wraps(function)
    def called(*arguments: P.args, **options: P.kwargs) -> Run:
        if not is_rank():
            return function(*arguments, **options)
        from velodrome.rollout.ranks import joined

        ranks = joined()
        if ranks is None or ranks.are_busy:
            return function(*arguments, **options)
        ranks.are_at_rest = False
        if not ranks.leads:
            market = options.get("market")
            run = Run.open(follow(ranks, None if isinstance(market, Mapping) else market))
            ranks.are_at_rest = True
            return run
        ranks.are_busy = True
        try:
            run = function(*arguments, **options)
        except BaseException:
            if not ranks.are_learning:  # else they notice by themselves
                ranks.sent(None)
            raise
        finally:
            ranks.are_busy = False
        ranks.sent(run.path.absolute())
        ranks.are_at_rest = True
        forget(run.path)
        return run

    return called
