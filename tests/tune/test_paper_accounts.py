"""The paper loop with several accounts, baskets whose instruments come at different moments, and ensembles."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from tests.runs.small_runs import one_thread, small_run  # noqa: F401
from tests.runs.test_portfolio_runs import TINY as PORTFOLIO
from tests.tune.conftest import GOOD, crown
from tests.tune.paper_feeds import KillAt, Killed, bars_logged, entries, follow_growing, some, write_feed
from velodrome.envs.catalog import CATALOG
from velodrome.evaluation.baselines import Memoryless
from velodrome.evaluation.evaluator import world_on
from velodrome.evaluation.play import Recording, play_split
from velodrome.rollout.observation import WindowBank
from velodrome.runs.run import train
from velodrome.tune.champions.registry import Registry
from velodrome.tune.paper.loop import follow

UNTAUGHT = {name: value for name, value in GOOD.items() if not name.startswith("teacher")}
BARS = 60


class OneByOne(Memoryless):
    """A policy that is asked for each account alone, so that no product is rounded by who else is in the batch."""

    def __init__(self, policy) -> None:
        self.policy, self.each = policy, []

    def begin(self, num_envs: int) -> None:
        self.each = [replace(self.policy) for _ in range(num_envs)]
        for one in self.each:
            one.begin(1)

    def act(self, observation):
        rows = range(len(self.each))
        parts = [{name: values[row : row + 1] for name, values in observation.items()} for row in rows]
        return np.concatenate([one.act(part) for one, part in zip(self.each, parts, strict=True)])


def feed_of(folder, lines):
    for symbol, own in lines.items():
        write_feed(folder / f"{symbol}.csv", own)
    return folder


def assert_is_the_backtest(root, bars, logged, waits: int = 0) -> None:
    """Compare a log with what the evaluation's own loop makes of the same bars."""
    champion = Registry(root).champion("trading")
    market = champion.lay_out(bars)
    world = world_on(CATALOG.get(champion.config.env), market, champion.config.params, whole=True)
    policy = OneByOne(replace(champion.policy(), bank=WindowBank(market.windows)))
    tracks = play_split(policy, world, market, (0,), Recording(("equity", "cash", "units")), endless=True)
    for place, track in enumerate(tracks):
        account = "" if champion.kind == "basket" else market.stretches[place]
        own = [entry for entry in logged if entry["account"] == account]
        played = slice(1, len(track.time) - waits)
        assert [entry["equity"] for entry in own] == track.columns["equity"][played, 0].tolist()
        assert [entry["cash"] for entry in own] == track.columns["cash"][played, 0].tolist()
        units = track.columns["units"][played].reshape(len(own), -1)
        assert [list(entry["units"].values()) for entry in own] == units.tolist()
    assert len({str(entry["action"]) for entry in logged}) > 1


def cut(bars, begin, end):
    return replace(bars, series={symbol: series.slice(begin, end) for symbol, series in bars.series.items()})


@pytest.mark.parametrize(
    "settings",
    [
        {"market.symbols": 2, "params.slippage": 1e-4, "market.per_instrument": True},
        pytest.param({"ensemble": 2}, marks=pytest.mark.slow),
        pytest.param({"network.kind": "gru", "params.action": "continuous"}, marks=pytest.mark.slow),
        pytest.param({"params.action": "continuous", "params.flat_at_session_end": True}, marks=pytest.mark.slow),
        pytest.param({"market.windows": {"1m": 4, "5m": 3}}, marks=pytest.mark.slow),
        pytest.param({"algorithm": "dqn"}, marks=pytest.mark.slow),
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_kinds_of_policies_and_accounts(settings, tmp_path):
    run = small_run(tmp_path / "runs", **{**UNTAUGHT, **settings})
    root = tmp_path / "runs"
    crown(run, root)
    bars = cut(run.market_settings.bars(), 1000, 1000 + BARS)
    lines = some(bars, 0, BARS)
    feed = feed_of(tmp_path / "feed", {symbol: own[:20] for symbol, own in lines.items()})
    counts = (21, 22, 40, BARS)
    steps = [lambda count=count: feed_of(feed, {name: own[:count] for name, own in lines.items()}) for count in counts]
    done = follow_growing("trading", feed, steps[:2], root=root)
    with pytest.MonkeyPatch.context() as patch:
        KillAt(patch, 3)
        with pytest.raises(Killed):
            follow_growing("trading", feed, steps[2:], root=root)
    done = follow_growing("trading", feed, steps[2:], root=root)
    assert done.drift.is_none
    logged = bars_logged(done.folder)
    # Whether a day ends with the last bar is not known before the next one, so that bar waits.
    assert_is_the_backtest(root, bars, logged, waits=int("params.flat_at_session_end" in settings))


@pytest.fixture(scope="module")
def portfolio(tmp_path_factory):
    told = {**PORTFOLIO, "steps": 256, "logging.folder": str(tmp_path_factory.mktemp("portfolio"))}
    return train(mode="quiet", evaluate=False, console=Console(file=io.StringIO()), **told)


def test_a_basket_whose_instruments_come_at_different_moments(portfolio, tmp_path):
    crown(portfolio, tmp_path)
    bars = cut(portfolio.market_settings.bars(), 300, 300 + BARS)
    lines = some(bars, 0, BARS)
    first, *others = lines
    halted = {**lines, others[0]: [*lines[others[0]][:30], *lines[others[0]][33:]]}  # three bars without trade

    def at(ahead: int, behind: int) -> None:
        # Some rows are there for one instrument alone: nothing is decided on them until the others have come.
        feed_of(tmp_path / "feed", {name: own[: ahead if name == first else behind] for name, own in halted.items()})

    at(20, 20)
    moments = [(21, 20), (21, 21), (23, 22), (24, 24), (34, 30), (34, 34), (35, 34), (BARS, BARS)]
    steps = [lambda pair=pair: at(*pair) for pair in moments]
    done = follow_growing("trading", tmp_path / "feed", steps, root=tmp_path)
    assert done.drift.is_none
    again = follow("trading", tmp_path / "feed", root=tmp_path, state=tmp_path / "again")
    assert again.drift.is_none
    traded = bars.series[others[0]]
    kept = np.r_[0:30, 33:BARS]
    rest = {name: getattr(traded, name)[kept] for name in ("time", "open", "high", "low", "close", "volume")}
    expected = replace(bars, series={**bars.series, others[0]: replace(traded, **rest, extra={})})
    assert_is_the_backtest(tmp_path, expected, bars_logged(again.folder))
    # What came after its row had been decided on is left out, and said; until then all is the same.
    live, whole = bars_logged(done.folder), bars_logged(again.folder)
    assert (live[:20], len(live)) == (whole[:20], len(whole))
    assert any("came too late" in entry["text"] for entry in entries(done.folder, "note"))
