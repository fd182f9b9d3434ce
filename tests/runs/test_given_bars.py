"""`vd.train(bars=…)`: prices that a program has are kept beside the runs, so that nothing need be given again."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import velodrome as vd
from tests.runs.small_runs import TINY, one_thread  # noqa: F401
from velodrome.bars import check_bars
from velodrome.bars.files import write_bars
from velodrome.errors import ConfigError
from velodrome.runs.config.files import as_it_was_read
from velodrome.runs.run import Run

SETTINGS = {name: value for name, value in TINY.items() if name != "market.length"}


@pytest.fixture(scope="module")
def frames():
    """Two instruments: prices with an adjusted close, and closes alone; the second begins later."""
    bars = vd.synthetic_bars("gbm", 300, symbols=["A", "B/USD"], timeframe="1h", volatility=0.01)
    first, second = (bars[symbol] for symbol in bars.symbols)
    index = pd.DatetimeIndex(first.time.astype("datetime64[ns]"), tz="UTC", name="Date")
    columns = {name.title(): getattr(first, name) for name in ("open", "high", "low", "close", "volume")}
    adjusted = first.close * np.where(np.arange(300) < 150, 1 / 3, 1)
    frame = pd.DataFrame({**columns, "Adj Close": adjusted, "Funding": 1e-5}, index=index)
    return {"Z": frame, "B/USD": pd.Series(second.close, index=index).iloc[20:]}


@pytest.fixture(scope="module")
def run(frames, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return vd.train("smoke", bars=frames, mode="quiet", evaluate=False, **SETTINGS, **{"logging.folder": str(folder)})


def test_a_run_on_frames_is_evaluated_and_continued_without_them(run, frames):
    assert run.config.market.source.startswith(str(run.path.parent / "bars"))
    assert run.config.market.symbols == ("B/USD", "Z")
    again = Run.open(run.path)
    assert again.market.content_hash == run.folder.information["data_hash"]
    given = vd.build_market(frames, ["return"], 4, check_leaks=False)
    assert np.array_equal(again.market.ohlc, given.ohlc)
    assert again.market.close_only == given.close_only == ("B/USD",)
    assert np.array_equal(again.market.time, given.time)
    evaluation = vd.evaluate(run.path, report=False)
    assert evaluation.information["symbols"] == ["B/USD", "Z"]
    assert "B/USD: there are closes and no other price" in evaluation.notes[0]
    assert vd.resume(run.path, mode="quiet").status == "finished"


def test_equal_bars_are_kept_once(run, frames, monkeypatch):
    from velodrome.runs import setup

    told = {**SETTINGS, "logging.folder": str(run.path.parent)}
    same, origins = setup.with_bars("smoke", told, {name: frame.copy() for name, frame in frames.items()})
    other, _ = setup.with_bars("smoke", told, {"Z": frames["Z"]})
    assert origins["market.source"] == "the bars given"
    assert same.market.source == run.config.market.source != other.market.source
    assert len(list((run.path.parent / "bars").iterdir())) == 2


def test_written_bars_are_read_to_the_same_bits(frames, tmp_path):
    bars = vd.read_bars(frames)
    write_bars(bars, tmp_path / "kept")
    kept = vd.read_bars(tmp_path / "kept", list(bars.symbols), adjust=False)
    for symbol in bars:
        one, other = bars[symbol], kept[symbol]
        assert one.close_only == other.close_only
        assert list(one.extra) == list(other.extra)
        for name in ("time", "open", "high", "low", "close", "volume"):
            assert np.array_equal(getattr(one, name), getattr(other, name))
    assert check_bars(tmp_path / "kept", adjust=False).ok


def test_what_contradicts_bars_is_refused(frames):
    market = vd.build_market(frames, ["return"], 4, check_leaks=False)
    with pytest.raises(ConfigError, match="market and bars were both given"):
        vd.train("smoke", bars=frames, market=market)
    with pytest.raises(ConfigError, match="env is CartPole-v1, which plays on no market"):
        vd.train("cartpole", bars=frames)


def test_files_of_older_runs_are_read_as_they_were_then(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("market:\n  source: prices\n  timezone: UTC\n")
    assert as_it_was_read(path) == {"market.adjust": False, "market.max_gap": None}
    path.write_text("market:\n  source: prices\n  timezone: UTC\n  adjust: true\n  max_gap: auto\n")
    assert as_it_was_read(path) == {}
    path.write_text("market:\n  source: ar1\n")
    assert as_it_was_read(path) == {}
