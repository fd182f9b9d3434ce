"""VecMonitor: the episodes, times and faults that it reports are those that happened, for every backend."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import textwrap
import time
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics, TransformReward
from hypothesis import given, settings
from hypothesis import strategies as st

import velodrome as vd
from tests.markets import small_market
from tests.vector.fleet.monitored import counting, play, zeros
from tests.vector.foreign_envs import Counting, Drawn, Faulty, Slow, Unsteady
from velodrome.errors import BackendError, ConfigError
from velodrome.vector.fleet.episode_file import MonitorFile
from velodrome.vector.fleet.monitor import VecMonitor
from velodrome.vector.fleet.step_times import BINS, EDGES

ROOT = Path(__file__).parents[3]
MODES = {"same_step": AutoresetMode.SAME_STEP, "next_step": AutoresetMode.NEXT_STEP, "disabled": AutoresetMode.DISABLED}


# Episodes


# Not "disabled": Gymnasium's environments take the mask out of the options before RecordEpisodeStatistics looks for it,
# which then forgets the episodes of all.
@pytest.mark.parametrize("mode", ["same_step", "next_step"])
@settings(max_examples=15)
@given(seed=st.integers(0, 1000), data=st.data())
def test_episodes_are_those_that_gymnasium_records(mode, seed, data):
    makers = [partial(Drawn, lengths=(1, 5))] * 3
    ours = VecMonitor(SyncVectorEnv(makers, autoreset_mode=MODES[mode]))
    theirs = RecordEpisodeStatistics(SyncVectorEnv(makers, autoreset_mode=MODES[mode]))
    steps = data.draw(st.integers(1, 40))
    actions = np.random.default_rng(seed).integers(0, 2, (steps, 3))
    for envs in (ours, theirs):
        envs.reset(seed=seed)
    assert play(ours, steps, actions) == play(theirs, steps, actions)
    assert ours.statistics().episodes == theirs.episode_count
    ours.close()
    theirs.close()


@pytest.mark.parametrize("mode", MODES)
def test_episodes_of_known_length_and_reward(mode):
    envs = VecMonitor(counting((2, 3), MODES[mode]))
    envs.reset(seed=0)
    found = play(envs, 12)
    first, second = [[one[1:] for one in found if one[0] == row] for row in (0, 1)]
    # Step k is worth k. With NEXT_STEP every episode is followed by a step that only resets.
    assert first == [(3.0, 2)] * (4 if mode == "next_step" else 6)
    assert second == [(6.0, 3)] * (3 if mode == "next_step" else 4)
    seen = envs.statistics()
    assert seen.steps == {"next_step": 24 - 4 - 3}.get(mode, 24)
    assert seen.episodes == seen.window == len(found)
    assert seen.mean_return == pytest.approx(np.mean([one[1] for one in found]))
    assert seen.median_length == np.median([one[2] for one in found])


def test_a_reset_drops_what_had_begun():
    envs = VecMonitor(counting((3, 3), AutoresetMode.DISABLED))
    envs.reset(seed=0)
    play(envs, 2)
    envs.reset(options={"reset_mask": np.array([True, False])})
    assert play(envs, 1) == [(1, 6.0, 3)]
    assert play(envs, 2) == [(0, 6.0, 3)]
    envs.reset()
    assert play(envs, 2) == []


def test_returns_are_summed_in_double_precision():
    class Small(Counting):
        def step(self, action):
            observation, _, *rest = super().step(action)
            return observation, 1e8 if self.count == 1 else 0.125, *rest

    envs = VecMonitor(vd.make_vec(partial(Small, length=9), 1, backend="serial"))
    envs.reset()
    assert play(envs, 9) == [(0, 1e8 + 1.0, 9)]


def own_sums(envs: Any, steps: int, seed: int) -> list[tuple[int, float, int]]:
    """Return (environment, return, length) by end, summed step by step: the slow and obvious way."""
    envs.reset(seed=seed)
    returns, lengths, found = np.zeros(envs.num_envs), np.zeros(envs.num_envs, int), []
    for _ in range(steps):
        _, rewards, terminated, truncated, _ = envs.step(zeros(envs))
        returns += rewards
        lengths += 1
        for row in np.flatnonzero(terminated | truncated):
            found.append((int(row), float(returns[row]), int(lengths[row])))
            returns[row] = lengths[row] = 0
        if envs.metadata["autoreset_mode"] is AutoresetMode.DISABLED and (terminated | truncated).any():
            envs.reset(options={"reset_mask": terminated | truncated})
    return found


@pytest.mark.parametrize("backend", ["serial", "process"])
@pytest.mark.parametrize("autoreset", [True, False])
def test_episodes_are_the_sums_of_their_rewards(backend, autoreset):
    made = vd.make_vec(partial(Drawn, lengths=(1, 5)), 3, backend=backend, autoreset=autoreset)
    wanted = own_sums(made, 60, seed=3)
    envs = VecMonitor(made)
    envs.reset(seed=3)
    assert play(envs, 60) == wanted
    assert len(wanted) > 20
    envs.close()


@pytest.mark.parametrize("backend", ["native", "python"])
def test_a_rule_reports_its_own_statistics(backend):
    options = {"market": small_market(), "episode_length": (3, 9), "backend": backend, "seed": 3}
    wanted = own_sums(vd.make_vec("trading", 5, **options), 40, 7)
    envs = VecMonitor(vd.make_vec("trading", 5, **options), info_keys=["fees", "sharpe"])
    envs.reset(seed=7)
    found = play(envs, 40)
    assert [(row, length) for row, _, length in found] == [(row, length) for row, _, length in wanted]
    np.testing.assert_allclose([one[1] for one in found], [one[1] for one in wanted], atol=1e-6)
    assert len(found) > 10
    seen = envs.statistics()
    assert (seen.steps, seen.episodes) == (200, len(found))
    assert seen.info_means["fees"] >= 0.0
    assert set(seen.info_means) == {"fees", "sharpe"}


def test_a_rule_that_is_not_reset_ends_once():
    envs = VecMonitor(vd.make_vec("template", 6, autoreset=False, seed=0, threads=1))
    envs.reset()
    ended = 0
    for _ in range(120):
        infos = envs.step(zeros(envs))[4]
        ended += int(infos["_episode"].sum()) if "_episode" in infos else 0
    seen = envs.statistics()
    assert ended == seen.episodes == 6
    assert seen.steps == seen.mean_length * 6


def test_rewards_that_a_wrapper_changes_are_what_is_summed():
    plain = VecMonitor(vd.make_vec("template", 4, seed=0, threads=1))
    doubled = VecMonitor(TransformReward(vd.make_vec("template", 4, seed=0, threads=1), lambda rewards: 2 * rewards))
    for envs in (plain, doubled):
        envs.reset(seed=1)
    wanted = [(row, 2 * total, length) for row, total, length in play(plain, 200)]
    assert wanted == play(doubled, 200)
    assert wanted


CUDA_SCRIPT = """
import json, sys
import torch, velodrome as vd
from velodrome.vector.fleet.monitor import VecMonitor
found = {}
for backend in ("native", "cuda"):
    envs = VecMonitor(vd.make_vec("template", 3, backend=backend, seed=5, length=7, check_actions=False), sys.argv[1])
    envs.reset()
    ends = found[backend] = []
    for t in range(25):
        *_, infos = envs.step(torch.zeros(3, dtype=torch.int64))
        if "_episode" in infos:
            episode = infos["episode"]
            if backend == "cuda":
                assert all(torch.is_tensor(value) for value in (*episode.values(), infos["_episode"]))
            ends += [(t, row, float(episode["r"][row]), int(episode["l"][row])) for row in range(3)
                     if infos["_episode"][row]]
    seen = envs.statistics()
    ends.append((seen.episodes, seen.steps, seen.mean_return, int(seen.step_seconds_counts.sum())))
    envs.close()
print(json.dumps(found))
"""


def test_a_device_reports_what_the_processor_does(tmp_path):
    answer = subprocess.run(
        [sys.executable, "-c", CUDA_SCRIPT, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=300,
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout.splitlines()[-1])
    assert found["cuda"] == found["native"]
    assert len(found["cuda"]) > 5
    # Both wrote into the same file: the second went on where the first had stopped.
    assert len((tmp_path / "monitor.csv").read_text().splitlines()) == 2 + 2 * (len(found["cuda"]) - 1)


# Other libraries' environments: infos, faults, times


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_info_keys_are_of_the_last_step(backend):
    envs = VecMonitor(
        vd.make_vec(partial(Drawn, infos="scalars", lengths=(2, 4)), 2, backend=backend, seed=0),
        info_keys=["count", "share", "even"],
    )
    envs.reset()
    lengths = [length for _, _, length in play(envs, 20)]
    seen = envs.statistics()
    assert seen.info_means["count"] == pytest.approx(np.mean(lengths))
    assert seen.info_means["share"] == pytest.approx(np.mean(lengths) / 3)
    assert seen.info_means["even"] == pytest.approx(np.mean([length % 2 == 0 for length in lengths]))
    assert envs.metrics()["monitor/info/count"] == seen.info_means["count"]
    envs.close()


def test_a_number_is_written_as_it_was_given(tmp_path):
    makers = [partial(Unsteady, length=1), partial(Unsteady, length=1)]
    envs = VecMonitor(vd.make_vec(makers, 2, backend="serial"), tmp_path, info_keys=["said"])
    envs.set_attr("label", [0, 1.75])
    envs.reset()
    envs.step([0, 0])
    head, _, *rows = (tmp_path / "monitor.csv").read_text().splitlines()
    assert '"env_id": "Unsteady"' in head
    assert [float(row.split(",")[-1]) for row in rows] == [0.0, 1.75]
    assert envs.metrics()["monitor/info/said"] == 0.875
    envs.close()


@pytest.mark.parametrize("mode", ["next_step", "disabled"])
def test_info_keys_without_a_final_info(mode):
    envs = VecMonitor(
        SyncVectorEnv([partial(Drawn, infos="scalars")] * 2, autoreset_mode=MODES[mode]), info_keys=["count"]
    )
    envs.reset(seed=1)
    lengths = [length for _, _, length in play(envs, 30)]
    assert envs.statistics().info_means["count"] == pytest.approx(np.mean(lengths))


def test_a_key_that_no_info_has_is_told_once():
    envs = VecMonitor(
        vd.make_vec(partial(Drawn, infos="scalars", lengths=(2, 2)), 1, backend="serial"), info_keys=["cuont"]
    )
    envs.reset()
    with pytest.warns(UserWarning, match=r"'cuont'.*Did you mean 'count'"):
        play(envs, 2)
    play(envs, 4)
    assert envs.statistics().info_means == {}


def test_faults_restarts_and_lost_environments_are_counted(tmp_path):
    maker = partial(Faulty, where="step", at=4, length=3)
    envs = VecMonitor(vd.make_vec(maker, 2, backend="serial", on_fault="restart"), tmp_path, info_keys=["missing"])
    envs.reset()
    with pytest.warns(UserWarning, match="missing"):
        found = play(envs, 5)
    # The second episode was cut off in its second step, by the fault, which was worth nothing.
    assert found == [(0, 6.0, 3), (1, 6.0, 3), (0, 1.0, 2), (1, 1.0, 2)]
    seen = envs.statistics()
    assert (seen.faults, seen.restarts, seen.lost) == (2, 2, 0)
    envs.close()
    envs = VecMonitor(vd.make_vec(maker, 2, backend="serial", on_fault="drop"))
    envs.reset()
    play(envs, 9)
    seen = envs.statistics()
    assert (seen.faults, seen.restarts, seen.lost, seen.episodes, seen.steps) == (2, 0, 2, 4, 10)
    assert seen.step_seconds_counts.sum() == 10
    assert envs.metrics()["monitor/lost"] == 2.0


def test_workers_that_are_replaced_are_counted():
    maker = partial(Faulty, kind="exit", where="step", at=2)
    envs = VecMonitor(vd.make_vec(maker, 2, backend="process", workers=1, on_fault="restart"))
    envs.reset()
    for _ in range(4):
        envs.step(zeros(envs))
    seen = envs.statistics()
    assert seen.worker_restarts == envs.worker_restarts >= 1
    assert seen.faults == len(envs.faults) >= 1
    envs.close()


def test_the_slowest_environment_is_named():
    seconds = (0.0, 0.02, 0.002)
    envs = VecMonitor(vd.make_vec([partial(Slow, value) for value in seconds], 3, backend="serial"))
    envs.reset()
    play(envs, 10)
    seen = envs.statistics()
    assert [slow.environment for slow in seen.slowest] == [1, 2, 0]
    assert 0.02 <= seen.slowest[0].mean_seconds < 0.2
    assert seen.step_seconds_counts.shape == (3, BINS)
    assert (seen.step_seconds_counts.sum(axis=1) == 10).all()
    slow = seen.step_seconds_counts[1]
    assert slow[: np.searchsorted(EDGES, 0.02) - 1].sum() == 0


def test_async_environments_are_watched_through_recv():
    envs = VecMonitor(vd.make_vec(partial(Counting, 4), 3, backend="async", workers=1))
    envs.reset(seed=0)
    envs.send(zeros(envs))
    found, taken = [], np.zeros(3, int)
    for _ in range(30):
        *_, infos, ids = envs.recv(1)
        taken[ids] += 1
        if "_episode" in infos:
            place = np.flatnonzero(infos["_episode"])
            found += [
                (int(ids[k]), float(infos["episode"]["r"][k]), int(infos["episode"]["l"][k])) for k in place
            ]  # fmt: skip
        envs.send(np.zeros(len(ids), np.int64), ids)
    assert [found.count((row, 10.0, 4)) for row in range(3)] == (taken // 4).tolist()
    assert len(found) == (taken // 4).sum() > 5
    seen = envs.statistics()
    assert seen.steps == seen.step_seconds_counts.sum() == 30
    np.testing.assert_array_equal(seen.step_seconds_counts.sum(axis=1), taken)
    envs.close()


def test_a_step_in_two_halves_is_watched_too():
    envs = VecMonitor(vd.make_vec(partial(Counting, 2), 2, backend="process", workers=1))
    envs.reset()
    for _ in range(4):
        envs.step_async(zeros(envs))
        envs.step_wait()
    assert (envs.statistics().steps, envs.statistics().episodes) == (8, 4)
    envs.close()


def test_what_a_backend_cannot_do_is_said():
    envs = VecMonitor(counting((2,)))
    with pytest.raises(BackendError, match=r"no recv\(\).*backend='async'"):
        envs.recv(1)
    with pytest.raises(BackendError, match=r"no resize\(\)"):
        envs.resize(3)
    with pytest.raises(AttributeError):
        _ = envs.backend


# Resize


@pytest.mark.parametrize("backend", ["native", "serial"])
def test_resizing_keeps_the_episodes_that_stay(backend):
    if backend == "native":
        envs = VecMonitor(vd.make_vec("template", 4, seed=0, threads=1, length=5))
    else:
        envs = VecMonitor(vd.make_vec(partial(Counting, 5), 4, backend="serial", seed=0))
    envs.reset()
    play(envs, 3)
    assert len(envs.resize(9)) == 9
    assert envs.num_envs == len(envs.action_space.sample()) == 9
    lengths = [(row, length) for row, _, length in play(envs, 2)]
    assert lengths == [(row, 5) for row in range(4)]
    envs.resize(6)
    lengths = [(row, length) for row, _, length in play(envs, 3)]
    assert lengths == [(4, 5), (5, 5)]
    seen = envs.statistics()
    assert seen.steps == 4 * 3 + 9 * 2 + 6 * 3
    assert seen.step_seconds_counts.shape == (6, BINS)
    assert envs.backend == backend


def test_environments_that_were_resized_below_the_monitor_are_followed():
    inner = vd.make_vec(partial(Counting, 3), 2, backend="serial")
    envs = VecMonitor(inner)
    envs.reset()
    play(envs, 2)
    inner.resize(4)
    assert [row for row, _, _ in play(envs, 1)] == [0, 1]
    assert [row for row, _, _ in play(envs, 2)] == [2, 3]


# The file


def results(folder: Path) -> Any:
    """Return what Stable-Baselines3 reads in a folder."""
    pytest.importorskip("pandas")
    monitor = pytest.importorskip("stable_baselines3.common.monitor")
    return monitor.load_results(str(folder))


def test_stable_baselines_reads_and_plots_the_file(tmp_path):
    envs = VecMonitor(vd.make_vec("CartPole-v1", 3, backend="serial", seed=0), tmp_path)
    envs.reset()
    found = play(envs, 60)
    table = results(tmp_path)
    assert table["r"].tolist() == [one[1] for one in found]
    assert table["l"].tolist() == [one[2] for one in found]
    assert table["t"].is_monotonic_increasing
    assert json.loads((tmp_path / "monitor.csv").read_text().splitlines()[0][1:])["env_id"] == "CartPole-v1"
    import matplotlib

    matplotlib.use("Agg")
    plotter = pytest.importorskip("stable_baselines3.common.results_plotter")
    x, y = plotter.ts2xy(table, plotter.X_TIMESTEPS)
    assert x[-1] == sum(one[2] for one in found)
    assert y.tolist() == [one[1] for one in found]
    plotter.plot_results([str(tmp_path)], None, plotter.X_EPISODES, "CartPole")
    import matplotlib.pyplot

    matplotlib.pyplot.close("all")
    envs.close()


def test_a_resumed_run_goes_on_in_the_file(tmp_path):
    for _ in range(2):
        envs = VecMonitor(counting((2, 3)), tmp_path / "deep" / "run")
        envs.reset(seed=0)
        play(envs, 6)
        envs.close()
        time.sleep(0.01)
    lines = (tmp_path / "deep" / "run.monitor.csv").read_text().splitlines()
    assert lines[1] == "r,l,t"
    assert len(lines) == 2 + 2 * 5
    times = [float(line.split(",")[2]) for line in lines[2:]]
    assert times == sorted(times)
    assert times[5] >= 0.01
    assert len(results(tmp_path / "deep")) == 10


def test_a_line_that_was_cut_off_is_removed(tmp_path):
    path = tmp_path / "monitor.csv"
    with_header = '#{"t_start": 5.0, "env_id": "x"}\nr,l,t\n1.0,2,3.0\n'
    path.write_text(with_header + "4.0,5")
    file = MonitorFile(path, (), "x")
    assert path.read_text() == with_header
    assert file.t_start == 5.0
    file.write([(7.5, 8, 9.0)])
    file.close()
    assert path.read_text() == with_header + "7.5,8,9.0\n"


@pytest.mark.parametrize("begun", ["", "#", '#{"t_start": 5.0, "env', '#{"t_start": 5.0, "env_id": "x"}\nr,l'])
def test_a_file_that_was_hardly_begun_is_begun_again(tmp_path, begun):
    path = tmp_path / "monitor.csv"
    path.write_text(begun)
    MonitorFile(path, (), "x").close()
    assert path.read_text().splitlines()[1:] == ["r,l,t"]
    assert path.read_text().startswith('#{"t_start": ')


def test_other_files_and_other_columns_are_refused(tmp_path):
    path = tmp_path / "monitor.csv"
    path.write_text("date,close\n2020-01-01,5\n")
    with pytest.raises(ConfigError, match="no file of episodes"):
        MonitorFile(path, (), "x")
    assert path.read_text().startswith("date")
    path.unlink()
    MonitorFile(path, ("won",), "x").close()
    with pytest.raises(ConfigError, match="r, l, t, won"):
        MonitorFile(path, (), "x")


def test_values_of_every_kind_are_written(tmp_path):
    file = MonitorFile(tmp_path, ("a", "b"), "x")
    file.write([(1.5, 2, 3.0, None, 'says "no",\nand goes'), (math.inf, 1, 4.0, [1, 2], math.nan)])
    file.close()
    table = results(tmp_path)
    assert table["b"].tolist()[0] == 'says "no", and goes'
    assert math.isnan(table["a"].iloc[0])
    assert table["a"].iloc[1] == "[1, 2]"
    assert table["r"].iloc[1] == math.inf


def test_a_killed_process_leaves_its_episodes(tmp_path):
    script = textwrap.dedent(
        """
        import os, signal, sys
        from tests.vector.fleet.test_monitor import VecMonitor, counting, play
        envs = VecMonitor(counting((2, 2)), sys.argv[1])
        envs.reset()
        play(envs, 20)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    answer = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=120,
    )
    assert answer.returncode == -signal.SIGKILL
    assert len((tmp_path / "monitor.csv").read_text().splitlines()) == 2 + 20


def test_a_forgotten_monitor_closes_its_file_and_nothing_else(tmp_path):
    inner = counting((2,))
    envs = VecMonitor(inner, tmp_path)
    file = envs._file._file
    del envs
    assert file.closed
    assert not inner.closed
    envs = VecMonitor(inner, tmp_path)
    envs.reset()
    play(envs, 2)
    envs.finish()
    envs.finish()
    play(envs, 2)
    assert envs.statistics().episodes == 2
    assert not inner.closed
    assert len((tmp_path / "monitor.csv").read_text().splitlines()) == 3


# What is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, "window = 0"),
        ({"window": True}, "window = True"),
        ({"info_keys": "won"}, "list of names"),
        ({"info_keys": ["r"]}, "there anyway"),
        ({"info_keys": ["a", "a"]}, "twice"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        VecMonitor(counting((2,)), **options)


def test_statistics_that_a_rule_has_not_are_refused():
    with pytest.raises(ConfigError, match=r"'lenght'.*Did you mean 'length'"):
        VecMonitor(vd.make_vec("template", 2), info_keys=["lenght"])


def test_environments_that_do_not_say_when_they_reset_are_refused():
    class Silent(gymnasium.vector.VectorEnv):
        num_envs = 1
        metadata: dict[str, Any] = {}  # noqa: RUF012

    with pytest.raises(BackendError, match="autoreset_mode"):
        VecMonitor(Silent())


def test_two_monitors_are_refused():
    envs = VecMonitor(VecMonitor(counting((1,))))
    envs.reset()
    with pytest.raises(ConfigError, match="Keep one"):
        envs.step(zeros(envs))
