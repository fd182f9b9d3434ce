"""Scalers: their numbers, fitted on training rows only, stored and applied again."""

from __future__ import annotations

import json

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from tests.tables.price_data import MINUTE, gappy_bars, with_series
from velodrome.errors import ConfigError
from velodrome.tables import build_market
from velodrome.tables.leaks.cuts import altered_after
from velodrome.tables.scaling import Scaler, centre_and_scale
from velodrome.tables.windows import window_at

FEATURES = ["log_return", "rsi_5", "volume"]


def test_what_each_kind_computes():
    values = np.random.default_rng(0).lognormal(0, 1, (500, 3)) * [1.0, 1e5, 1e-5]
    centre, scale = centre_and_scale(values, "standard")
    assert_allclose(centre, values.mean(0), rtol=1e-12)
    assert_allclose(scale, values.std(0), rtol=1e-12)
    centre, scale = centre_and_scale(values, "robust")
    assert_allclose(centre, np.median(values, 0))
    assert_allclose(scale, np.subtract(*np.percentile(values, [75, 25], axis=0)))
    centre, scale = centre_and_scale(values, "minmax")
    scaled = (values - centre) / scale
    assert_allclose(scaled.min(0), -1)
    assert_allclose(scaled.max(0), 1)
    assert_array_equal(centre_and_scale(values, "none"), [np.zeros(3), np.ones(3)])


@pytest.mark.parametrize("kind", ["standard", "robust", "minmax", "none"])
def test_a_constant_feature_has_scale_one(kind):
    values = np.full((100, 2), 0.1)
    values[:3, 1] = 5.0
    centre, scale = centre_and_scale(values, kind)
    assert scale[0] == 1.0
    assert centre[0] == (0.0 if kind == "none" else 0.1)
    # Quartiles that coincide do not make a scale of 0.
    assert scale[1] > 0


@pytest.mark.parametrize("rows", range(2, 40))
def test_a_constant_whose_mean_rounds_has_scale_one_too(rows):
    for value in (0.1, 1 / 3, 1e5 / 7):
        centre, scale = centre_and_scale(np.full((rows, 1), value), "standard")
        assert (centre[0], scale[0]) == (value, 1.0)


@pytest.mark.parametrize("per_instrument", [False, True])
def test_fitted_on_the_rows_that_training_can_show(per_instrument):
    bars = gappy_bars(900, 2, ("AAA", "BBB"))
    raw = build_market(bars, FEATURES, {"1m": 4, "15m": 2}, "5m", scaler="none")
    market = build_market(bars, FEATURES, {"1m": 4, "15m": 2}, "5m", per_instrument=per_instrument)
    for place, scaler in enumerate(market.scalers):
        shown: list[dict[bytes, np.ndarray]] = []
        for begin, end in raw.splits["train"]:
            shown.append({})
            table_rows = {}
            for t in range(begin, end):
                last = int(raw.windows.rows[place, t])
                for back, row in enumerate(window_at(raw.windows, place, t)[::-1]):
                    table_rows[last - back] = row
            shown[-1] = table_rows
        # A finer window than the execution bars skips rows; the fit takes every row between its first and last.
        groups = [np.array([rows[key] for key in sorted(rows)]) for rows in shown]
        groups = groups if per_instrument else [np.concatenate(groups)]
        exact = place == 1
        for index, group in enumerate(groups):
            assert_allclose(
                scaler.centre[index], group.mean(0), rtol=1e-5 if exact else 0.2, atol=1e-6 if exact else 1e-3
            )
            assert_allclose(scaler.scale[index], group.std(0), rtol=1e-4 if exact else 0.2)
    assert market.scalers[0].symbols == (("AAA", "BBB") if per_instrument else ())


def test_the_future_does_not_move_the_fit():
    bars = gappy_bars(900)
    market = build_market(bars, FEATURES, {"1m": 4, "15m": 2})
    end = market.splits["train"][0][1]
    keep = int(np.searchsorted(bars["AAA"].time, market.time[end - 1] + MINUTE))
    other = build_market(with_series(bars, AAA=altered_after(bars["AAA"], keep)), FEATURES, {"1m": 4, "15m": 2})
    assert other.scalers == market.scalers
    assert other.content_hash != market.content_hash


def test_scaled_windows_are_the_raw_ones_scaled():
    bars = gappy_bars(900, symbols=("AAA", "BBB"))
    raw = build_market(bars, FEATURES, 4, scaler="none")
    for choices in ({}, {"scaler": "robust", "per_instrument": True}, {"clip": 0.5}):
        market = build_market(bars, FEATURES, 4, **choices)
        scaler = market.scalers[0]
        for row, t in ((0, 500), (-1, 1500)):
            expected = (window_at(raw.windows, 0, t) - scaler.centre[row]) / scaler.scale[row]
            expected = np.clip(expected, -scaler.clip, scaler.clip) if scaler.clip else expected
            assert_allclose(window_at(market.windows, 0, t), expected, rtol=1e-4, atol=1e-5)


def test_scalers_are_stored_and_used_on_later_data():
    bars = gappy_bars(900)
    market = build_market(bars, FEATURES, {"1m": 4, "5m": 2}, clip=4.0)
    stored = tuple(Scaler.from_dict(record) for record in json.loads(json.dumps([s.to_dict() for s in market.scalers])))
    assert stored == market.scalers
    assert hash(stored[0]) == hash(market.scalers[0])
    again = build_market(bars, FEATURES, {"1m": 4, "5m": 2}, scalers=stored)
    assert_array_equal(again.windows.values, market.windows.values)
    live = build_market(gappy_bars(300, 9), FEATURES, {"1m": 4, "5m": 2}, splits={}, scalers=market.scalers)
    assert live.scalers == market.scalers
    assert live.splits == {}


def test_refused_scalers():
    bars = gappy_bars(900)
    market = build_market(bars, FEATURES, 4)
    with pytest.raises(
        ConfigError, match="scalers are for 1m: log_return, rsi_5, volume and the windows are 1m: rsi_5"
    ):
        build_market(bars, ["rsi_5"], 4, scalers=market.scalers)
    each = build_market(bars, FEATURES, 4, per_instrument=True)
    with pytest.raises(ConfigError, match="per instrument for AAA and not for BBB"):
        build_market(gappy_bars(900, symbols=("BBB",)), FEATURES, 4, scalers=each.scalers)


def test_warm_up_rows_are_zero_and_never_shown():
    market = build_market(gappy_bars(300), ["rsi_14"], 3)
    assert market.begin.tolist() == [16]
    assert_array_equal(market.windows.values[: 3 + 14], 0)


def test_fit_takes_rows_by_instrument():
    rows = {"A": np.array([[0.0], [2.0]]), "B": np.array([[10.0], [30.0]])}
    assert Scaler("1m", "minmax", ("x",), ("A", "B")).fit(rows).centre.tolist() == [[1.0], [20.0]]
    assert Scaler("1m", "minmax", ("x",)).fit(rows).centre.tolist() == [[15.0]]
