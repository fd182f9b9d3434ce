"""The paper loop: equal to the backtest to the bit, across kills and champions, whatever a feed brings."""

from __future__ import annotations

import json
import os
import random
import re
import signal

import pytest

from tests.runs.small_runs import AtFileOperation, ended, one_thread, small_run, start  # noqa: F401
from tests.tune.conftest import GOOD, crown
from tests.tune.paper_feeds import KillAt, Killed, bars_logged, entries, follow_growing, some, write_feed
from velodrome import cli
from velodrome.envs.catalog import CATALOG
from velodrome.errors import ChampionError, ConfigError, DataError, VelodromeError
from velodrome.evaluation.evaluator import world_on
from velodrome.evaluation.play import Recording, play_split
from velodrome.rollout.observation import WindowBank
from velodrome.tune.champions.registry import Registry
from velodrome.tune.paper import loop
from velodrome.tune.paper.loop import follow

BARS = 90
SYMBOL = "ar1_0"


@pytest.fixture(scope="module")
def root(tmp_path_factory, good_run):
    """A folder of runs with a champion."""
    folder = tmp_path_factory.mktemp("paper")
    crown(good_run, folder)
    return folder


@pytest.fixture(scope="module")
def lines(good_run) -> list[str]:
    """Bars that the champion never saw."""
    return some(good_run.market_settings.bars(), 2100, 2100 + BARS)[SYMBOL]


@pytest.fixture(scope="module")
def feed(tmp_path_factory, lines):
    return write_feed(tmp_path_factory.mktemp("feed") / f"{SYMBOL}.csv", lines)


@pytest.fixture(scope="module")
def replayed(root, feed, tmp_path_factory) -> list[dict]:
    """What a replay of all bars logs."""
    done = follow("trading", feed, root=root, state=tmp_path_factory.mktemp("replay"))
    assert done.drift.is_none
    assert done.drift.bars == done.bars == BARS - 5  # a return needs 1 bar, a window 4, and the first decides only
    return bars_logged(done.folder)


def test_a_replay_is_the_backtest_to_the_bit(root, good_run, replayed):
    champion = Registry(root).champion("trading")
    bars = good_run.market_settings.bars()
    market = champion.lay_out(type(bars)({SYMBOL: bars[SYMBOL].slice(2100, 2100 + BARS)}, bars.timeframe))
    world = world_on(CATALOG.get("trading"), market, champion.config.params, whole=True)
    policy = champion.policy().with_bank(WindowBank(market.windows))
    (track,) = play_split(policy, world, market, (0,), Recording(("equity", "units", "cash")), endless=True)
    for name in ("equity", "cash"):
        assert [entry[name] for entry in replayed] == track.columns[name][1:, 0].tolist()
    assert [entry["units"][SYMBOL] for entry in replayed] == track.columns["units"][1:, 0].tolist()
    assert [entry["action"] for entry in replayed] == track.actions[:, 0].tolist()
    assert len({entry["action"] for entry in replayed}) > 1  # it does trade
    decisions = [entry["decision"] for entry in replayed]
    assert [entry["action"] for entry in replayed[1:]] == decisions[:-1]


def test_a_feed_that_grows_by_bars_and_half_lines_gives_the_same(root, lines, replayed, tmp_path):
    feed = tmp_path / f"{SYMBOL}.csv"
    text = "".join(lines)
    ends = [0, 10, *(len("".join(lines[:count])) + half for count, half in ((4, 7), (7, 0), (8, 20), (40, 3), (41, 0)))]
    steps = [lambda end=end: write_feed(feed, [text[:end]]) for end in (*ends, len(text))]
    done = follow_growing("trading", feed, steps, root=root, state=tmp_path / "state")
    assert done.drift.is_none
    assert bars_logged(done.folder) == replayed


def test_twenty_kills_change_nothing(root, feed, replayed, tmp_path, monkeypatch):
    chance, kills = random.Random(7), 0
    monkeypatch.setattr(loop, "SAVE_BARS", 7)
    while True:
        with pytest.MonkeyPatch.context() as patch:
            if kills < 20:
                KillAt(patch, chance.randint(1, 12))
            try:
                done = follow("trading", feed, root=root, state=tmp_path)
                if kills >= 20:
                    break
            except Killed:
                kills += 1
    assert done.drift.is_none
    assert bars_logged(tmp_path) == replayed


UNTAUGHT = {name: value for name, value in GOOD.items() if not name.startswith("teacher")}
OTHERS = {"levels": {"params.levels": (-0.5, 0.0, 0.5, 1.0)}, "continuous": {"params.action": "continuous"}}


@pytest.fixture(scope="module", params=["levels", pytest.param("continuous", marks=pytest.mark.slow)])
def second(request, tmp_path_factory):
    """A run that sees other windows and features, and trades in another way."""
    seen = {"market.windows": 6, "market.features": ("return", "log_return")}
    return small_run(tmp_path_factory.mktemp("second"), **{**UNTAUGHT, **seen, **OTHERS[request.param]})


def test_a_new_champion_takes_over_with_the_position_across_kills(good_run, second, lines, replayed, tmp_path):
    crown(good_run, tmp_path)
    feed = write_feed(tmp_path / "feed" / f"{SYMBOL}.csv", lines[:45])
    follow("trading", feed, root=tmp_path)
    crown(second, tmp_path)
    chance = random.Random(3)
    for count in (46, 60, BARS):
        write_feed(feed, lines[:count])
        with pytest.MonkeyPatch.context() as patch:
            KillAt(patch, chance.randint(2, 5))
            with pytest.raises(Killed):
                follow("trading", feed, root=tmp_path)
        done = follow("trading", feed, root=tmp_path)
    logged = bars_logged(done.folder)
    assert done.drift.is_none
    assert done.bars == len(replayed)
    taken = entries(done.folder, "takeover")
    assert [(entry["number"], entry["instead_of"]) for entry in taken] == [(2, 1)]
    at = next(place for place, entry in enumerate(logged) if entry["time"] == taken[0]["time"])
    assert logged[:at] == replayed[:at]
    assert {entry["promotion"] for entry in logged[: at + 1]} == {1}
    assert {entry["promotion"] for entry in logged[at + 1 :]} == {2}
    # The bar after it goes on from the position and the money that were there, by a decision of the new champion.
    before, after = logged[at], logged[at + 1]
    assert before["equity"] == replayed[at]["equity"]
    moved = after["orders"].get(SYMBOL, 0.0)
    assert after["units"][SYMBOL] == pytest.approx(before["units"][SYMBOL] + moved)
    assert isinstance(after["action"], float if second.config.params.get("action") == "continuous" else int)


def test_twenty_kills_around_a_change_of_champion_change_nothing(good_run, second, lines, tmp_path):
    def followed(folder, kills):
        chance = random.Random(5)
        crown(good_run, folder)
        for count in (45, 46, 60, BARS):
            if count == 46:
                crown(second, folder)
            feed = write_feed(folder / "feed" / f"{SYMBOL}.csv", lines[:count])
            for _ in range(kills):
                with pytest.MonkeyPatch.context() as patch:
                    KillAt(patch, chance.randint(1, 5))
                    with pytest.raises(Killed):
                        follow("trading", feed, root=folder)
            done = follow("trading", feed, root=folder)
            assert done.drift.is_none
        return bars_logged(done.folder)

    assert followed(tmp_path / "killed", 5) == followed(tmp_path / "left-alone", 0)


def test_a_champion_that_cannot_take_over_leaves_the_old_one_at_work(good_run, lines, tmp_path):
    crown(good_run, tmp_path)
    feed = write_feed(tmp_path / "feed" / f"{SYMBOL}.csv", lines[:30])
    follow("trading", feed, root=tmp_path)
    registry = Registry(tmp_path)
    record = registry.record("trading")
    other = registry.champion("trading")
    place = other.path.with_name("other")
    place.mkdir()
    for file in other.path.iterdir():
        (place / file.name).write_bytes(file.read_bytes())
    (place / "champion.json").write_text(json.dumps({**other.about, "symbols": ["elsewhere"]}))
    registry.add("trading", type(other).open(place), record.current, "other", run="x")
    write_feed(feed, lines[:40])
    done = follow("trading", feed, root=tmp_path)
    assert done.drift.is_none
    assert (done.number, done.bars) == (1, 35)
    (said,) = [entry["text"] for entry in entries(done.folder, "note")]
    assert said.startswith("promotion 2 cannot take over: it trades elsewhere")


# What a feed may bring


def changed(line: str, factor: float) -> str:
    moment, *prices, volume = line.strip().split(",")
    return ",".join([moment, *(repr(float(price) * factor) for price in prices), volume]) + "\n"


def test_odd_bars_are_said_and_change_no_decision(root, lines, replayed, tmp_path):
    feed = tmp_path / f"{SYMBOL}.csv"
    swapped = [*lines[:30], lines[31], lines[30], lines[31], *lines[32:40]]  # out of order, and one twice
    late = [*lines[:50], *lines[51:60]]
    steps = [
        lambda: write_feed(feed, swapped),
        lambda: write_feed(feed, late),
        lambda: write_feed(feed, [*late, lines[50]]),  # the one that was missing
        lambda: write_feed(feed, [*late[:20], changed(late[20], 1.5), *late[21:], lines[50], *lines[60:70]]),
        lambda: write_feed(feed, [*late, lines[70].replace(",", ",nonsense", 1)]),
        lambda: write_feed(feed, [*late, *lines[60:]]),
    ]
    done = follow_growing("trading", feed, steps, root=root, state=tmp_path / "state")
    said = [entry["text"] for entry in entries(done.folder, "note")]
    for words in ("1 row is doubled", "1 row is older", "came too late", "no longer what was decided on", "nonsense"):
        assert sum(words in text for text in said) >= 1, (words, said)
    assert len(said) == len(set(said))
    logged = bars_logged(done.folder)
    assert logged[:44] == replayed[:44]
    assert len(logged) == len(replayed) - 1  # but for the bar that came too late
    assert done.drift.is_none


def test_a_replay_of_broken_bars_is_refused_as_read_bars_refuses_them(root, lines, tmp_path):
    broken = [*lines[:30], lines[30].replace(",", ",nonsense", 1), *lines[31:]]
    feed = write_feed(tmp_path / f"{SYMBOL}.csv", broken)
    with pytest.raises(DataError, match="line 32"):
        follow("trading", feed, root=root, state=tmp_path / "state")


@pytest.mark.parametrize(
    ("name", "step", "message"),
    [
        ("other", 1, r"champion 'trading' trades ar1_0, and not all of them are there: no symbol 'ar1_0'"),
        (SYMBOL, 5, r"its bars are of 5m, and champion 'trading' takes bars of 1m"),
        (SYMBOL, 30, r"cannot begin: the window of 4 bars"),
    ],
)
def test_a_feed_that_does_not_suit_is_refused_in_one_sentence(root, lines, tmp_path, name, step, message):
    feed = write_feed(tmp_path / f"{name}.csv", lines[::step] if step < 30 else lines[:3])
    with pytest.raises(VelodromeError, match=message):
        follow("trading", feed, root=root, state=tmp_path / "state")


def test_a_folder_is_for_one_loop_and_one_champion(root, feed, good_run, tmp_path):
    from velodrome.tune.paper.memory import Memory

    with Memory(tmp_path / "state"), pytest.raises(ChampionError, match="another loop runs there"):
        follow("trading", feed, root=root, state=tmp_path / "state")
    crown(good_run, root, "another")
    follow("another", feed, root=root, state=tmp_path / "state")
    with pytest.raises(ChampionError, match="those of champion 'another', not of 'trading'"):
        follow("trading", feed, root=root, state=tmp_path / "state")
    with pytest.raises(ConfigError, match="cannot be changed now"):
        follow("another", feed, root=root, state=tmp_path / "state", seed=1)
    (tmp_path / "state" / "state.json").write_text("{")
    with pytest.raises(ChampionError, match="cannot be read"):
        follow("another", feed, root=root, state=tmp_path / "state")


def test_a_date_that_is_none_is_told_as_it_was_given(root, feed, tmp_path):
    with pytest.raises(ConfigError, match=r"^since has the date 'yesterday'; write it as"):
        follow("trading", feed, root=root, state=tmp_path, since="yesterday")


def test_decisions_begin_at_a_date(root, feed, lines, tmp_path):
    moment = lines[40].split(",")[0]
    done = follow("trading", feed, root=root, state=tmp_path, since=moment)
    assert done.bars == BARS - 41
    (begun,) = entries(tmp_path, "begin")
    assert begun["time"] == moment.replace("T", " ")
    assert done.drift.is_none


def test_a_signal_keeps_everything(root, feed, replayed, tmp_path):
    class Stopping:
        bars = 0

        def entry(self, entry):
            self.bars += entry["kind"] == "bar"
            if entry["kind"] == "bar" and self.bars == 20:
                signal.raise_signal(signal.SIGINT)

        def waiting(self, text):
            pass

    done = follow("trading", feed, root=root, state=tmp_path, view=Stopping())
    assert done.stopped
    assert done.bars == 20
    follow("trading", feed, root=root, state=tmp_path)
    assert bars_logged(tmp_path) == replayed


# The command


def test_the_command_shows_the_end_and_goes_on(root, feed, capsys, tmp_path):
    words = ["paper", "trading", "--feed", str(feed), "--folder", str(root), "--state", str(tmp_path)]
    assert cli.run([*words, "--json"]) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [printed[0]["kind"], printed[-1]["kind"]] == ["start", "end"]
    assert printed[-1]["drift"] == {"bars": BARS - 5, "equity": 0.0, "actions": 0, "missing": 0}
    assert cli.run(words) == 0
    assert "none, to the bit" in capsys.readouterr().out
    assert cli.run(["paper", "nobody", "--feed", str(feed), "--folder", str(root)]) == 2
    assert "no champion 'nobody'" in capsys.readouterr().err


def test_bars_that_the_champion_knew_are_not_called_out_of_sample(root, good_run, capsys, tmp_path):
    """A feed that begins before the test split: what was learnt from and chosen by is counted, and can be left out."""
    market, bars = good_run.market, good_run.market_settings.bars()
    known = int(market.split("validation").end.max())
    feed = write_feed(tmp_path / f"{SYMBOL}.csv", some(bars, known - 60, known + 40)[SYMBOL])
    words = ["paper", "trading", "--feed", str(feed), "--folder", str(root)]
    assert cli.run([*words, "--state", str(tmp_path / "all"), "--quiet"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert f"warning: {60 - 5} of these bars are not out of sample" in told
    assert ", from 10,000.00 (" in told
    since = re.search(r"--since '([^']+)'", told)[1]
    assert cli.run([*words, "--state", str(tmp_path / "later"), "--since", since, "--json"]) == 0
    end = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (end["known"], end["bars"]) == (0, 40)


@pytest.mark.slow
def test_processes_that_are_killed_go_on_to_the_bit(root, feed, replayed, tmp_path):
    words = ["paper", "trading", "--feed", str(feed), "--folder", str(root), "--state", str(tmp_path / "state")]
    chance, killed = random.Random(11), 0
    for _ in range(6):
        process = start(words, tmp_path / "output", AtFileOperation(chance.randint(1, 9)))
        killed += ended(process) == -signal.SIGKILL
    assert killed >= 4
    assert ended(start(words, tmp_path / "output")) == 0
    assert bars_logged(tmp_path / "state") == replayed
    assert os.listdir(tmp_path / "state").count("state.json") == 1
