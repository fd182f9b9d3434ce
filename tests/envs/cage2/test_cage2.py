"""CAGE-2 as its users meet it: names, parameters, variants, rewards of their own, tables and logs."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import velodrome as vd
from tests.oracles.cage2_rewards import everything
from velodrome.envs import cage2
from velodrome.envs.cage2 import cage2_world, codes
from velodrome.envs.cage2.network import DEPLOYABLE, NETWORK
from velodrome.errors import ActionError, ConfigError, DataError


def play(actions, **values):
    """Play one environment and return it with its rewards and observations."""
    env = vd.make("cage2", seed=3, **values)
    env.reset()
    steps = [env.step(action) for action in actions]
    return env, [step[1] for step in steps], [step[0] for step in steps]


# Names


def test_actions_have_names_both_ways():
    assert cage2.action("DecoyTomcat", "User2") == 116
    assert cage2.action_name(116) == "DecoyTomcat User2"
    assert cage2.action("Sleep") == 0
    assert cage2.action("Monitor") == 1
    assert cage2.action("Restore", "User4") == 144
    assert [cage2.action(cage2.action_name(k)) for k in range(145)] == list(range(145))
    reduced = [cage2.action_name(k, action_set="reduced") for k in range(36)]
    assert len(set(reduced)) == 36
    assert [cage2.action(*name.split(), action_set="reduced") for name in reduced] == list(range(36))


def test_blocks_of_actions_begin_where_the_original_has_them():
    firsts = {
        "Analyse": 2, "Remove": 15, "DecoyApache": 28, "DecoyFemitter": 41, "DecoyHarakaSMPT": 54, "DecoySmss": 67,
        "DecoySSHD": 80, "DecoySvchost": 93, "DecoyTomcat": 106, "DecoyVsftpd": 119, "Restore": 132,
    }  # fmt: skip
    assert {kind: cage2.action(kind, "Defender") for kind in firsts} == firsts


def test_hosts_have_names_both_ways():
    assert cage2.host("User2") == 10
    assert [cage2.host(cage2.host_name(k)) for k in range(13)] == list(range(13))


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: cage2.action("DecoyTomcatt", "User2"), r"unknown action 'DecoyTomcatt'.*Did you mean 'DecoyTomcat'\?"),
        (lambda: cage2.action("Restor", "User2"), r"Did you mean 'Restore'\?"),
        (lambda: cage2.action("Restor"), r"Did you mean 'Restore'\?"),
        (lambda: cage2.action("Slep"), r"Did you mean 'Sleep'\?"),
        (lambda: cage2.action("Restore Usr2"), r"Did you mean 'Restore User2'\?"),
        (lambda: cage2.action("Restore"), r"action 'Restore' needs a host"),
        (lambda: cage2.action("Sleep", "User2"), r"It takes no host"),
        (lambda: cage2.action("Restore", "Usr2"), r"unknown host 'Usr2'\. Did you mean 'User2'\?"),
        (lambda: cage2.action("Restore", "Op_Host0", action_set="reduced"), r"reduced action set has no 'Restore Op_H"),
        (lambda: cage2.action("Sleep", action_set="small"), r"action_set = 'small'; legal: full, reduced"),
        (lambda: cage2.action_name(145), r"action 145 does not exist; legal: 0 … 144"),
        (lambda: cage2.action_name(-1), r"legal: 0 … 144"),
        (lambda: cage2.action_name("x"), r"action 'x' is no whole number; legal: 0 … 144"),
        (lambda: cage2.action_name(1.5), r"action 1.5 is no whole number"),
        (lambda: cage2.true_state(vd.make_vec("template", 2)), r"takes a vector environment of 'cage2'.*no column '"),
        (lambda: cage2.true_state(None), r"takes a vector environment of 'cage2'"),
        (lambda: cage2.action_name(36, action_set="reduced"), r"legal: 0 … 35"),
        (lambda: cage2.host("Enterprise3"), r"unknown host 'Enterprise3'\. Did you mean"),
        (lambda: cage2.host_name(13), r"host 13 does not exist; legal: 0 … 12"),
        (lambda: cage2.decoy_bit("Smss", "User3"), r"Smss cannot run on User3; these can: SSHD, Vsftpd"),
        (lambda: cage2.decoy_bit("Apachee", "User3"), r"Did you mean 'Apache'\?"),
    ],
)
def test_a_name_that_does_not_exist_suggests_the_nearest(ask, message):
    with pytest.raises(ConfigError, match=message):
        ask()


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ("B_line.npz", r"arrays of a file by name, received 'B_line.npz': numpy.load\('B_line.npz'\) reads them"),
        (None, "received None"),
    ],
)
def test_a_replay_takes_the_arrays_of_a_file(record, message):
    with pytest.raises(DataError, match=message):
        cage2.replay(record)


# Parameters


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"mixture": (1, 1)}, "mixture = .*needs three probabilities, of b_line, meander and sleep, received 2"),
        (
            {"red_agent": "bline"},
            r"red_agent = 'bline': Input should be 'b_line', 'meander', 'sleep' or 'mixture'\. Did you mean 'b_line'",
        ),
        ({"red_agent": "B_lineAgent"}, r"red_agent = 'B_lineAgent': Input should be 'b_line'"),
        ({"observation_rule": "correct"}, r"Did you mean 'corrected'\?"),
        ({"action_set": "small"}, r"action_set = 'small': Input should be 'full' or 'reduced'"),
        ({"episode_length": 0}, r"episode_length = 0: .*greater than or equal to 1.*30, 50 and 100"),
        ({"episode_length": 2_000_000}, r"less than or equal to 1000000"),
        ({"episode_length": 1.5}, r"episode_length = 1\.5"),
        ({"mixture": (0.5, 0.6, 0.0)}, r"three probabilities with sum 1, received sum 1\.1"),
        ({"mixture": (1.5, -0.5, 0.0)}, r"three probabilities"),
        ({"mixture": (0.5, 0.5)}, r"mixture = \(0\.5, 0\.5\)"),
        ({"reward": "oficial"}, r"reward = 'oficial'"),
        ({"red_agnt": "sleep"}, r"unknown parameter 'red_agnt'\. Did you mean 'red_agent'\?"),
    ],
)
def test_an_illegal_parameter_is_refused(values, message):
    with pytest.raises(ConfigError, match=message):
        cage2_world(**values)


@pytest.mark.parametrize(("action_set", "illegal"), [("full", 145), ("reduced", 36)])
def test_an_action_that_does_not_exist_is_refused(action_set, illegal):
    envs = vd.make_vec("cage2", 3, seed=0, action_set=action_set)
    envs.reset()
    with pytest.raises(ActionError, match=rf"action of environment 1 is .*{illegal}.*Nothing was stepped"):
        envs.step(np.array([0, illegal, 0]))


@pytest.mark.parametrize("length", [1, 30, 50, 100, 137])
def test_an_episode_is_as_long_as_it_is_said_to_be_and_ends_truncated(length):
    envs = vd.make_vec("cage2", 2, seed=0, episode_length=length)
    envs.reset()
    for step in range(length):
        _, _, terminated, truncated, infos = envs.step(np.zeros(2, np.int64))
        assert not terminated.any()
        assert truncated.all() == (step == length - 1)
    assert (infos["statistics"]["length"] == length).all()


def test_the_spaces_are_those_of_the_challenge():
    envs = vd.make_vec("cage2", num_envs=200, red_agent="b_line")
    assert envs.single_action_space.n == 145
    assert envs.single_observation_space.shape == (52,)
    assert vd.make_vec("cage2", 1, action_set="reduced").single_action_space.n == 36
    wide = vd.make_vec("cage2", 1, scan_memory=True, decoy_memory=True)
    assert wide.single_observation_space.shape == (52 + 10 + 41,)
    assert wide.world.observed[52] == "Defender scan memory"
    assert wide.world.observed[-1] == "User4 Vsftpd decoy"


def test_red_asleep_is_never_seen():
    envs = vd.make_vec("cage2", 50, seed=1, red_agent="sleep", episode_length=40)
    envs.reset()
    rng = np.random.default_rng(0)
    for _ in range(40):
        actions = rng.integers(0, 145, 50)
        observations, rewards, *_ = envs.step(actions)
        assert not observations.any()
        np.testing.assert_array_equal(rewards, np.where(actions >= 132, -1.0, 0.0).astype(np.float32))


# The quirk


def test_a_restored_op_server_is_immune_unless_impact_repeats():
    """B_line needs 15 steps to stop OTService; a single Restore before that makes the episode immune."""
    restore, sleep = cage2.action("Restore", "Op_Server0"), cage2.action("Sleep")
    actions = [restore, *[sleep] * 59]
    for repeats in (False, True):
        worst = min(play(actions, red_agent="b_line", episode_length=60, impact_repeats=repeats)[1])
        assert worst < -10.0 if repeats else worst > -4.0


def test_without_a_restore_impact_costs_ten_in_every_step():
    env, rewards, _ = play([0] * 60, red_agent="b_line", episode_length=60)
    down = [reward < -10.0 for reward in rewards]
    first = down.index(True)
    assert first >= 14
    assert all(down[first:])
    assert cage2.true_state(env.envs)["service_up"].tolist() == [False]


def test_a_first_impact_works_after_restores_elsewhere():
    actions = [cage2.action("Restore", "Op_Host0"), *[0] * 59]
    assert min(play(actions, red_agent="b_line", episode_length=60)[1]) < -10.0


# Statistics


def test_statistics_count_what_happened():
    restore, decoy, failing = (
        cage2.action("Restore", "User1"), cage2.action("DecoySSHD", "User3"), cage2.action("DecoySSHD", "User1"),
    )  # fmt: skip
    env = vd.make("cage2", seed=3, red_agent="meander", episode_length=60)
    env.reset()
    total, impacts, owned, exploits = 0.0, 0, 0, 0
    for step in range(60):
        action = [restore, decoy, failing, decoy, *[0] * 56][step]
        _, reward, _, _, info = env.step(action)
        total += reward
        truth = cage2.true_state(env.envs)
        impacts += not truth["service_up"][0]
        owned += int(truth["privileged"][0].sum()) - 1
        state = env.state()
        exploits += state["exploit"] >= 0 and state["red_result"] == 1
    statistics = info["statistics"]
    assert statistics["reward"] == statistics["official_reward"] == pytest.approx(total, abs=1e-3)
    assert statistics["restores"] == 1
    assert statistics["decoys"] == 1
    assert statistics["red_agent"] == 1
    assert (statistics["impact_steps"], statistics["privileged_steps"], statistics["exploits"]) == (
        impacts, owned, exploits,
    )  # fmt: skip
    assert impacts > 0
    assert exploits > 3
    assert statistics["reward"] == round(statistics["reward"], 1)


# Memories


def test_scan_memory_says_where_a_scan_was_seen_before_and_last():
    _, _, observations = play([0] * 30, red_agent="meander", scan_memory=True)
    hosts = [0, 1, 2, 3, 7, 8, 9, 10, 11, 12]
    expected, seen = np.zeros(10), set()
    for observation in observations:
        for place, host in enumerate(hosts):
            if observation[4 * host] == 1 and observation[4 * host + 1] == 0:
                expected[expected == 2] = 1
                expected[place] = 2
                break
        np.testing.assert_array_equal(observation[52:], expected)
        seen |= set(expected)
    assert seen == {0.0, 1.0, 2.0}


def test_decoy_memory_is_what_runs():
    rng = np.random.default_rng(5)
    envs = vd.make_vec("cage2", 20, seed=1, decoy_memory=True)
    envs.reset()
    pairs = [(host, decoy) for host, decoys in enumerate(DEPLOYABLE) for decoy in decoys]
    assert len(pairs) == 41
    for _ in range(60):
        observations, *_ = envs.step(rng.integers(0, 145, 20))
        running = cage2.true_state(envs)["decoys"]
        expected = np.stack([running[:, host] >> decoy & 1 for host, decoy in pairs], axis=1)
        np.testing.assert_array_equal(observations[:, 52:], expected)
    assert observations[:, 52:].mean() > 0.1


ALL_MEMORIES = {f"{kind}_memory": True for kind in ("scan", "decoy", "activity", "attack", "port", "step", "red")}


def test_activity_memory_says_how_long_ago_each_host_showed_what():
    hosts = [0, 1, 2, 3, 7, 8, 9, 10, 11, 12]
    rng = np.random.default_rng(2)
    _, _, observations = play(rng.integers(0, 145, 90), red_agent="meander", activity_memory=True)
    last = np.full((10, 2), -1)  # step in which each host showed a scan and an exploit last
    found = set()
    for step, observation in enumerate(observations):
        shown = observation[:52].reshape(13, 4)[hosts, :2]
        last[(shown[:, 0] == 1) & (shown[:, 1] == 0), 0] = step
        last[shown[:, 1] == 1, 1] = step
        ago = np.where(last < 0, -1, step - last)
        expected = [ago == 1, ago == 2, ago == 3, np.where(ago < 0, 0, (15 - np.minimum(ago, 14)) / 15)]
        np.testing.assert_allclose(observation[52:].reshape(10, 2, 4), np.stack(expected, axis=2), atol=1e-6)
        found |= set(np.minimum(ago, 20).ravel().tolist())
    assert found >= {-1, 0, 1, 2, 3, 4, 14, 20}


def test_attack_memory_says_what_the_service_attacked_last_gives_away():
    """Without decoys every attack that leaves a trace succeeds; what it gave is shown until that host is restored."""
    hosts = [0, 1, 2, 3, 7, 8, 9, 10, 11, 12]
    envs = vd.make_vec("cage2", 300, seed=4, attack_memory=True)
    envs.reset()
    expected, rng, seen = np.zeros((300, 13), np.int64), np.random.default_rng(0), set()
    for _ in range(60):
        actions = np.where(rng.random(300) < 0.2, rng.integers(132, 145, 300), 0)
        observations, *_ = envs.step(actions)
        restored = actions >= 132
        expected[restored, actions[restored] - 132] = 0
        exploits, targets, results = (envs.column(name) for name in ("exploit", "red_target", "red_result"))
        for k in np.flatnonzero((exploits >= 0) & (results == 1)):
            service = cage2.EXPLOITS[exploits[k]]
            gives = NETWORK[targets[k]].services[service]
            expected[k, targets[k]] = 1 if service == "SSHBruteForce" else 3 if gives == "privileged" else 2
        shown = observations[:, 52:].reshape(300, 10, 3)
        np.testing.assert_array_equal(shown @ [1, 2, 3], expected[:, hosts])
        seen |= set(expected.ravel().tolist())
    assert seen == {0, 1, 2, 3}


@pytest.mark.parametrize("green", [False, True])
def test_port_memory_is_what_the_last_scan_of_a_host_found(green):
    """Without Green that is what Red remembers, a Restore or not; with Green nobody can tell whose scan it was."""
    envs = vd.make_vec("cage2", 200, seed=4, red_agent="meander", green=green, action_set="reduced", **ALL_MEMORIES)
    first = envs.world.observed.index("Defender Apache decoy when scanned")
    envs.reset()
    expected, rng, differ = np.zeros((200, 13), np.int64), np.random.default_rng(1), 0
    pairs = [(host, place) for host, decoys in enumerate(DEPLOYABLE) for place in range(len(decoys))]
    for _ in range(60):
        observations, *_ = envs.step(rng.integers(0, 36, 200))
        running = envs.column("decoys")[:, None] >> 4 * np.arange(13) & 15
        scanned = (envs.column("red_action") == codes.SCAN) & (envs.column("red_result") == codes.SUCCEEDED)
        for rows, hosts in ((scanned, envs.column("red_target")), (envs.column("green") >= 0, envs.column("green"))):
            chosen = np.flatnonzero(rows), hosts[rows]
            expected[chosen] = running[chosen]
        shown = observations[:, first : first + 41]
        np.testing.assert_array_equal(shown, np.stack([expected[:, host] >> k & 1 for host, k in pairs], axis=1))
        remembered = envs.column("memory")[:, None] >> 4 * np.arange(13) & 15
        assert green or (remembered == expected).all()
        differ += (shown != observations[:, 62:103]).sum()
    assert shown.any()
    assert differ > 0


def test_step_memory_counts_the_steps_and_an_episode_may_be_told_to_terminate():
    envs = vd.make_vec("cage2", 2, seed=1, action_set="reduced", episode_end="terminated", **ALL_MEMORIES)
    first = envs.world.observed.index("steps 1 to 10")
    observations, _ = envs.reset()
    for step in range(1, 101):
        assert observations[0, first : first + 10].sum() * 10 == pytest.approx(step - 1, abs=1e-4)
        assert (np.diff(observations[0, first : first + 10]) <= 0).all()
        observations, _, terminated, truncated, _ = envs.step(np.zeros(2, int))
        assert terminated.tolist() == [step == 100] * 2
        assert not truncated.any()
    assert not observations[:, first : first + 10].any()  # another episode has begun


@pytest.mark.parametrize("red", ["b_line", "meander", "sleep"])
def test_red_memory_tells_red_by_its_first_moves(red):
    envs = vd.make_vec("cage2", 400, seed=2, red_agent=red, action_set="reduced", **ALL_MEMORIES)
    envs.reset()
    rng = np.random.default_rng(1)
    shown = [envs.step(rng.integers(0, 36, 400))[0][:, -2:].copy() for _ in range(12)]
    assert not shown[1].any()  # nobody can tell after two steps
    assert (shown[-1] == [red == "b_line", red == "meander"]).all()
    for before, after in pairwise(shown):
        assert (after >= before).all()  # once told it stays
    assert envs.world.observed[-2:] == ("Red is b_line", "Red is meander")
    assert len(envs.world.observed) == 52 + 10 + 41 + 80 + 30 + 41 + 10 + 2


def test_memories_change_nothing_else():
    rng = np.random.default_rng(3)
    actions = rng.integers(0, 145, 60)
    _, plain, bits = play(actions, red_agent="meander", green=True)
    _, rewards, seen = play(actions, red_agent="meander", green=True, **ALL_MEMORIES)
    assert plain == rewards
    np.testing.assert_array_equal(np.stack(seen)[:, :52], np.stack(bits))


# The reduced action set


def test_the_reduced_set_is_cardiffs():
    first = [133, 134, 135, 139, 3, 4, 5, 9, 16, 17, 18, 22, 11, 12, 13, 14, 141, 142, 143, 144, 132, 2, 15, 24, 25, 26]
    numbers = cage2_world(action_set="reduced").tables.actions
    assert numbers[:27].tolist() == [*first, 27]


# In the order of the reduced set's last nine actions; what CardiffUni's agent would place, one after another.
GREEDY = {
    "Enterprise0": [55, 107, 120, 55], "Enterprise1": [43, 43], "Enterprise2": [44, 44],
    "User1": [37, 115, 76, 102, 37], "User2": [51, 116, 38, 90, 51], "User3": [130, 91, 130], "User4": [131, 131],
    "Defender": [54, 106, 28, 119, 54], "Op_Server0": [61, 35, 113, 126, 61],
}  # fmt: skip


@pytest.mark.parametrize("host", GREEDY)
def test_a_decoy_action_places_the_next_decoy_of_the_host(host):
    action = cage2.action("Decoy", host, action_set="reduced")
    env = vd.make("cage2", seed=3, red_agent="sleep", action_set="reduced")
    env.reset()
    placed = []
    for _ in GREEDY[host]:
        env.step(action)
        placed.append(int(env.state()["blue_action"]))
    assert placed == GREEDY[host]
    env.step(cage2.action("Restore", host, action_set="reduced"))
    env.step(action)
    assert int(env.state()["blue_action"]) == GREEDY[host][0]


# Rewards of one's own


def bits_of(values):
    return int(sum(1 << k for k, value in enumerate(values) if value))


def test_an_own_reward_sees_the_true_state():
    env = vd.make("cage2", seed=3, red_agent="meander", reward=everything, episode_length=60)
    env.reset()
    rng = np.random.default_rng(1)
    before = (-1, 0.0, 1 << 8)
    for step in range(60):
        action = int(rng.integers(0, 145)) if step % 3 == 0 else 0
        observation, reward, _, _, info = env.step(action)
        truth, state = {name: values[0] for name, values in cage2.true_state(env.envs).items()}, env.state()
        shown = observation.reshape(13, 4)
        masks = [truth[name] for name in ("privileged", "user", "removable", "file", "known_ip", "scanned")]
        scans, exploits = (shown[:, 0] > shown[:, 1]), shown[:, 1] > 0
        values = [bits_of(values) for values in (*masks, scans, exploits, shown[:, 2:].any(axis=1))]
        official = -0.1 * sum(
            {1: 10, 2: 10, 3: 10, 7: 10, 8: 0}.get(host, 1) for host in np.flatnonzero(truth["privileged"])
        )
        official -= 10.0 * (not truth["service_up"]) + 1.0 * (action >= 132)
        expected = np.dot(values, [1, 3, 5, 7, 11, 13, 17, 19, 23]) + truth["service_up"] + action
        expected += state["blue_success"] + state["red_action"] + state["red_target"] + 1
        expected += 1 if state["red_result"] == 3 else state["red_result"]
        expected += official - before[1] + before[0]
        expected += 29 * int(truth["decoys"][0] & 1) + 31 * (values[0] ^ before[2])
        assert reward == pytest.approx(expected, rel=1e-5)
        before = (action, official, values[0])
    assert info["statistics"]["official_reward"] != info["statistics"]["reward"]


def test_an_own_reward_may_be_compiled_or_not():
    def rewards(backend):
        envs = vd.make_vec("cage2", 3, seed=3, backend=backend, reward=everything, red_agent="meander")
        envs.reset()
        return np.stack([envs.step(np.zeros(3, np.int64))[1].copy() for _ in range(40)])

    np.testing.assert_array_equal(rewards("native"), rewards("python"))


def test_a_reward_that_cannot_be_compiled_is_explained():
    def with_a_typo(old, new):
        return new.privilegd

    with pytest.raises(ConfigError, match="cannot be compiled"):
        vd.make_vec("cage2", 2, reward=with_a_typo)


@pytest.mark.parametrize("backend", ["native", "python"])
def test_a_reward_takes_what_was_before_and_what_is_now(backend):
    with pytest.raises(ConfigError, match=r"^reward takes \(old, new\); .*<lambda> takes \(new\): too many"):
        vd.make_vec("cage2", 2, reward=lambda new: 1.0, backend=backend)


# For people


def test_a_table_shows_the_true_state():
    env = vd.make("cage2", seed=3, red_agent="b_line", render_mode="ansi")
    env.reset()
    assert "step 0, Red b_line, OTService up" in env.render()
    env.step(cage2.action("DecoyTomcat", "User2"))
    for _ in range(40):
        env.step(0)
    text = env.render()
    assert "OTService DOWN" in text
    assert "Blue: Sleep. Red: Impact Op_Server0 TRUE." in text
    rows = {line.split()[1]: line for line in text.splitlines() if line.startswith("│")}
    assert set(rows) == set(cage2.HOSTS)
    assert "Tomcat" in rows["User2"]
    assert "privileged" in rows["Op_Server0"]
    assert "privileged" not in rows["Defender"]


def test_many_environments_have_a_table_each():
    envs = vd.make_vec("cage2", 3, seed=3)
    envs.reset()
    assert len(envs.render()) == 3


def test_an_episode_can_be_read():
    env = vd.make("cage2", seed=3, red_agent="b_line", episode_length=50, green=True)
    log = cage2.episode_log(env, lambda observation: 0, seed=3)
    assert len(log) == 50
    assert log.total == pytest.approx(sum(entry.reward for entry in log))
    assert log.entries[0].red == "DiscoverRemoteSystems User TRUE"
    assert any(entry.green for entry in log)
    text = str(log)
    assert "Red b_line: 50 steps" in text
    assert "compromised No -> User" in text
    assert "Impact Op_Server0 TRUE" in text
    assert str(cage2.episode_log(env, [0] * 50, seed=3)) == text


def test_a_log_ends_with_the_actions_it_was_given():
    env = vd.make("cage2", seed=3, red_agent="b_line")
    log = cage2.episode_log(env, [cage2.action("DecoySSHD", "User1")], seed=3)
    assert [entry.blue for entry in log] == ["DecoySSHD User1 (fails)"]


def test_a_log_needs_one_environment_of_cage2():
    with pytest.raises(ConfigError, match=r"needs one environment, vd\.make"):
        cage2.episode_log(vd.make("template"), [0])
    with pytest.raises(ConfigError, match="needs one environment"):
        cage2.episode_log(vd.make_vec("cage2", 2), [0])


def test_the_true_state_is_the_same_on_every_backend():
    def truth(backend):
        envs = vd.make_vec("cage2", 5, seed=3, backend=backend, red_agent="meander")
        envs.reset()
        for action in range(0, 145, 5):
            envs.step(np.full(5, action))
        return cage2.true_state(envs)

    ours, theirs = truth("native"), truth("python")
    for name, values in ours.items():
        np.testing.assert_array_equal(values, theirs[name], err_msg=name)
    assert ours["privileged"].shape == (5, 13)


def test_a_run_can_name_its_parameters():
    from velodrome.runs.config.parameters import checked_parameters

    given = {"red_agent": "mixture", "mixture": [0.5, 0.5, 0.0], "scan_memory": True}
    assert checked_parameters("cage2", given) == given
    with pytest.raises(ConfigError, match=r"params\.red_agent = 'bline'.*Did you mean 'b_line'"):
        checked_parameters("cage2", {"red_agent": "bline"})
