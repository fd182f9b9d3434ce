"""Bars, markets and baskets show themselves in a line or a few, and as a small table in a notebook."""

from __future__ import annotations

import polars as pl

import velodrome as vd
from velodrome.bars.summary import Summarised, Summary, day_span

BARS = vd.synthetic_bars("factors", 200, symbols=["A<B", "C"], timeframe="1h")


def test_bars():
    assert repr(BARS) == (
        "Bars: 2 symbols, 400 bars of 1h, 2020-01-01 … 2020-01-09 (UTC), from synthetic factors, seed 0"
    )
    assert repr(BARS["C"]) == "Series: 200 bars, 2020-01-01 … 2020-01-09"
    assert str(BARS) == repr(BARS)
    assert "<th>first close</th>" in BARS._repr_html_()
    assert "<td>A&lt;B</td><td>200</td><td>2020-01-01 … 2020-01-09</td>" in BARS._repr_html_()
    assert BARS["C"]._repr_html_().count("<tr>") == 7  # a heading, the first three bars and the last three


def test_notes_go_with_the_bars_and_the_market():
    bars = vd.read_bars(pl.DataFrame({"time": BARS["C"].time, "close": BARS["C"].close}))
    market = vd.build_market(bars, ["return"], 2, check_leaks=False)
    assert repr(bars).splitlines()[1].startswith("  note: frame: there are closes and no other price")
    assert repr(market).splitlines()[1] == repr(bars).splitlines()[1]
    assert "<p>note: frame: there are closes" in market._repr_html_()


def test_the_report_of_a_check():
    series = BARS["C"]
    columns = {"time": series.time, "open": series.open, "high": series.low, "low": series.low, "close": series.close}
    report = vd.check_bars(pl.DataFrame(columns))
    first, *notes = repr(report).splitlines()
    assert first.startswith("a polars DataFrame: These bars would be refused. ")
    assert notes[0].startswith(
        "  finding: the frame, row 0 (counted from 0), column 'open': open 100.0 lies outside low"
    )
    assert "<td>refused</td><td>frame</td><td>open outside the bar</td>" in report._repr_html_()


def test_markets_and_baskets():
    market = vd.build_market(BARS, ["return"], {"1h": 4, "4h": 2}, check_leaks=False)
    assert repr(market) == (
        "Market 'market': A<B, C; 400 bars of 1h, 2020-01-01 … 2020-01-09 (UTC); windows 4 × 1h of 1 features, "
        "2 × 4h of 1 features; splits train, validation, test"
    )
    assert "<td>validation</td><td>60</td><td>2020-01-06 … 2020-01-08</td>" in market._repr_html_()
    basket = vd.build_basket(BARS, ["return"], 4, splits={"train": 1.0}, check_leaks=False)
    assert repr(basket) == (
        "Basket 'basket': A<B, C; 200 bars of 1h, 2020-01-01 … 2020-01-09 (UTC); windows 4 × 1h of 2 features; "
        "splits train"
    )
    assert repr(market.split("test")).startswith("Market 'market[test]'")


def test_what_is_long_is_cut():
    class Long(Summarised):
        def summary(self) -> Summary:
            return Summary("long", ("n",), tuple((str(n),) for n in range(50)), tuple(f"note {n}" for n in range(50)))

    assert repr(Long()).splitlines() == ["long", *(f"  note: note {n}" for n in range(3)), "  note: and 47 more"]
    assert Long()._repr_html_().count("<td>") == 30
    assert day_span(BARS["C"].time[:0]) == "no bars"
