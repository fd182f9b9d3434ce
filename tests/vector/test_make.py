"""`make` and `make_vec`: what they take and refuse, and that Gymnasium's own vector environments agree with ours."""

from __future__ import annotations

import re
import time
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import velodrome as vd
from tests.contracts.comparison import random_actions
from tests.markets import small_market
from velodrome.envs._template import template_world
from velodrome.envs.contract import state_columns
from velodrome.envs.trading.world import trading_world
from velodrome.errors import ActionError, ConfigError
from velodrome.vector import rule_env

MARKET = small_market(bars=80, instruments=2)


def trading(num_envs: int = 3, **options: Any) -> Any:
    return vd.make_vec("trading", num_envs, **{"market": MARKET, "episode_length": 6, "seed": 1, **options})


# Refusals


@pytest.mark.parametrize("factory", [vd.make, lambda env, **options: vd.make_vec(env, 2, **options)])
def test_an_unknown_environment_suggests_the_nearest(factory):
    with pytest.raises(
        ConfigError, match=r"env = 'tradng': there is no such environment. Did you mean 'trading'\? Legal: trading, "
    ):
        factory("tradng")
    for wrong in (3, None):
        with pytest.raises(ConfigError, match=rf"env = {wrong}: needs the name of an environment, a World, the id or"):
            factory(wrong)
    with pytest.raises(
        ConfigError, match=r"env is one environment, .*give its class \(CartPoleEnv\), its id, or a func"
    ):
        factory(gymnasium.make("CartPole-v1"))
    with pytest.raises(ConfigError, match="env is a vector environment already"):
        factory(gymnasium.make_vec("CartPole-v1", 1, vectorization_mode="sync"))


def test_one_environment_of_a_class_is_made_by_calling_it():
    with pytest.raises(ConfigError, match=r"CartPoleEnv.* is an environment of Gymnasium: calling it makes one"):
        vd.make(CartPoleEnv)


def test_an_unknown_backend_suggests_the_nearest():
    with pytest.raises(
        ConfigError, match=r"backend = 'natve' for a rule; legal: auto, native, cuda, python\. Did you mean 'native'"
    ):
        vd.make_vec("template", 2, backend="natve")
    with pytest.raises(ConfigError, match="backend = None for a rule; legal"):
        vd.make_vec("template", 2, backend=None)
    with pytest.raises(ConfigError, match="backend = 'auto' for one environment; legal: 'native', 'python'"):
        vd.make("template", backend="auto")


@pytest.mark.parametrize("factory", [vd.make, lambda env, **options: vd.make_vec(env, 2, **options)])
def test_an_unknown_observation_suggests_the_nearest(factory):
    with pytest.raises(
        ConfigError, match=r"observation = 'flats'; legal: 'flat', 'dict', 'cursor'\. Did you mean 'flat'"
    ):
        factory("template", observation="flats")


def test_an_observation_that_is_no_name_is_refused():
    with pytest.raises(ConfigError, match="observation = None; legal"):
        vd.make_vec("template", 2, observation=None)


@pytest.mark.parametrize("num_envs", [0, -1, 1.5, True, "3", None])
def test_num_envs_is_a_whole_number_of_at_least_one(num_envs):
    with pytest.raises(ConfigError, match=r"num_envs = .*: needs a whole number of at least 1"):
        vd.make_vec("template", num_envs, backend="python")


def test_num_envs_may_be_a_numpy_integer():
    envs = vd.make_vec("template", np.int64(2), backend="python")
    assert envs.num_envs == 2
    assert type(envs.num_envs) is int


@pytest.mark.parametrize("threads", [0, -1, 10_000])
def test_threads_out_of_range_are_refused(threads):
    with pytest.raises(ConfigError, match=rf"threads = {threads}: this machine offers 1 … \d+ \(or None, to measure\)"):
        vd.make_vec("template", 2, threads=threads)


@pytest.mark.parametrize("threads", [1.5, "2"])
def test_threads_are_a_whole_number(threads):
    with pytest.raises(ConfigError, match="threads"):
        vd.make_vec("template", 2, threads=threads)


def test_an_unknown_parameter_suggests_the_nearest():
    with pytest.raises(ConfigError, match=r"unknown parameter 'levrage'\. Did you mean 'leverage'\?"):
        vd.make("trading", market=MARKET, levrage=2.0)
    with pytest.raises(ConfigError, match="the trading environment needs a Market"):
        vd.make_vec("trading", 2)


@pytest.mark.parametrize("backend", ["auto", "native", "python", "cuda", "serial", "process", "async", "SubprocVecEnv"])
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("tradng", "there is no such environment. Did you mean 'trading'? Legal: trading, portfolio"),
        ("CartPol-v1", "there is no such environment. Did you mean 'CartPole-v1'? Legal: trading"),
        ("CartPole", "there is no such environment. Did you mean 'CartPole-v1'? Legal: trading"),
        ("velodrome.errors:CartPol-v1", "there is no such environment. Did you mean 'CartPole-v1'?"),
        ("no_such_module:CartPole-v1", "the module 'no_such_module' cannot be imported"),
    ],
)
def test_an_environment_that_nobody_knows_is_told_with_any_backend(name, told, backend):
    with pytest.raises(ConfigError, match=re.escape(f"env = {name!r}: {told}")):
        vd.make_vec(name, 2, backend=backend)


def test_a_module_that_registers_an_environment_is_imported(tmp_path, monkeypatch):
    entry = "gymnasium.envs.classic_control:CartPoleEnv"
    (tmp_path / "registering.py").write_text(f"import gymnasium\ngymnasium.register('Own-v0', entry_point={entry!r})\n")
    monkeypatch.syspath_prepend(tmp_path)
    envs = vd.make_vec("registering:Own-v0", 2, backend="serial", seed=0)
    assert envs.reset()[0].shape == (2, 4)


def test_one_environment_of_gymnasium_is_left_to_gymnasium():
    with pytest.raises(ConfigError, match=r"gymnasium\.make\('CartPole-v1'\) makes one, vd\.make_vec many"):
        vd.make("CartPole-v1")


@pytest.mark.parametrize(
    ("env", "options"),
    [
        ("trading", {"market": MARKET}),
        ("trading", {"market": MARKET, "observation": "cursor"}),
        ("template", {"backend": "python"}),
        ("CartPole-v1", {"backend": "auto"}),
        ("CartPole-v1", {"backend": "process"}),
    ],
)
def test_more_environments_than_memory_holds_are_refused_at_once(env, options):
    began = time.perf_counter()
    with pytest.raises(
        ConfigError, match=r"num_envs = 1,000,000,000: they take .* GB are free: at most about [\d,]+ fit"
    ):
        vd.make_vec(env, num_envs=10**9, **options)
    assert time.perf_counter() - began < 5


def test_what_fits_is_told_for_this_memory(monkeypatch):
    monkeypatch.setattr(rule_env, "free_memory", lambda: 200_000_000)
    envs = vd.make_vec("template", 3, backend="python")
    with pytest.raises(
        ConfigError, match=r"num_envs = 2,000,000: .* and 0\.2 GB are free: at most about 1,800,000 fit"
    ):
        envs.resize(2_000_000)
    assert envs.num_envs == 3


@pytest.mark.parametrize("env", ["template", "CartPole-v1"])
def test_fractions_among_discrete_actions_are_told(env):
    envs = vd.make_vec(env, 3, backend="python" if env == "template" else "serial", seed=0)
    envs.reset()
    with pytest.raises(ActionError, match=r"That of environment 1 is nan: the policy that chose it has diverged"):
        envs.step(np.array([0.0, np.nan, np.inf]))
    with pytest.raises(
        ActionError, match=r"whole numbers, not float32; convert those that are whole with \.astype\(int\)"
    ):
        envs.step(np.zeros(3, np.float32))


def test_a_world_is_taken_as_it_is():
    world = template_world(length=3)
    assert vd.make(world).envs.world is world
    assert vd.make_vec(world, 2).world is world
    with pytest.raises(ConfigError, match=r"a World has its parameters already; received length, momentum besides"):
        vd.make_vec(world, 2, length=4, momentum=0.5)
    with pytest.raises(ConfigError, match="a World has its parameters already; received length besides"):
        vd.make(world, length=4)


def test_a_world_may_be_shared():
    world = template_world(length=3)
    first, second = (vd.make_vec(world, 3, seed=1) for _ in range(2))
    first.reset()
    second.reset()
    for _ in range(5):
        first.step(np.ones(3, np.int64))
    assert (second.column("cursor") == 0).all()


# Seeds


def test_a_negative_seed_is_refused():
    with pytest.raises(ConfigError, match="seed = -1: a seed is a whole number of at least 0"):
        vd.make_vec("template", 2, seed=-1).reset()
    with pytest.raises(ConfigError, match="seed = -1"):
        vd.make_vec("template", 2).reset(seed=-1)
    with pytest.raises(ConfigError, match="seed = -4"):
        vd.make_vec("template", 2).reset(seed=[1, -4])
    with pytest.raises((ConfigError, gymnasium.error.Error)):
        vd.make("template").reset(seed=-1)


@pytest.mark.parametrize("seed", [1.5, "ab", [1.5, 2]])
def test_a_seed_of_another_type_is_refused(seed):
    with pytest.raises(ConfigError, match="seed"):
        vd.make_vec("template", 2).reset(seed=seed)


def test_a_list_of_seeds_has_one_for_each_environment():
    for seeds in ([1], [1, 2, 3, 4], []):
        with pytest.raises(ConfigError, match=f"seed has {len(seeds)} entries for 3 environments"):
            vd.make_vec("template", 3).reset(seed=seeds)


@pytest.mark.parametrize("seeds", [[3, 14, 159], np.array([3, 14, 159]), (3, 14, 159)], ids=["list", "array", "tuple"])
def test_environments_with_their_own_seeds_are_single_environments(seeds):
    envs = trading(autoreset=False, copy=True, slippage=1e-3, fee=(0.0, 0.01))
    observations, _ = envs.reset(seed=seeds)
    singles = [
        vd.make("trading", market=MARKET, episode_length=6, slippage=1e-3, fee=(0.0, 0.01)) for _ in range(3)
    ]  # fmt: skip
    for row, (env, seed) in enumerate(zip(singles, seeds, strict=True)):
        np.testing.assert_array_equal(env.reset(seed=int(seed))[0], observations[row])
    for actions in random_actions(envs.single_action_space, 3, 6, seed=2):
        observations, rewards, terminated, truncated, _ = envs.step(actions)
        for row, env in enumerate(singles):
            observation, reward, ended, cut, _ = env.step(actions[row])
            np.testing.assert_array_equal(observation, observations[row])
            assert (reward, ended, cut) == (rewards[row], terminated[row], truncated[row])
    for name in state_columns(envs.world.state_type):
        apart = np.stack([env.state()[name] for env in singles], axis=-1)
        np.testing.assert_array_equal(envs.column(name), apart, err_msg=name)


def test_a_seed_at_the_making_is_that_of_the_first_reset():
    made, given = vd.make_vec("template", 4, seed=9), vd.make_vec("template", 4, seed=1)
    np.testing.assert_array_equal(made.reset()[0], given.reset(seed=9)[0])
    np.testing.assert_array_equal(made.column("rng_key"), given.column("rng_key"))
    # A later reset without a seed goes on in the same streams and does not repeat them.
    made.reset()
    assert (made.column("rng_counter") > given.column("rng_counter")).all()
    np.testing.assert_array_equal(made.column("rng_key"), given.column("rng_key"))


def test_without_a_seed_runs_differ():
    made = [vd.make_vec("template", 2, backend="python") for _ in range(3)]
    for envs in made:
        envs.reset()
    assert len({int(envs.column("rng_key")[0]) for envs in made}) == 3


def test_none_in_a_list_of_seeds_leaves_a_stream_as_it_is():
    envs = vd.make_vec("template", 3, seed=5)
    envs.reset()
    before = envs.column("rng_key")
    envs.reset(seed=[None, 8, None])
    np.testing.assert_array_equal(envs.column("rng_key") == before, [True, False, True])


def test_none_in_the_first_list_of_seeds_takes_the_seed_of_the_making():
    envs, whole = (vd.make_vec("template", 4, seed=5, backend="python") for _ in range(2))
    envs.reset(seed=[8, None, None, None])
    whole.reset()
    np.testing.assert_array_equal(envs.column("rng_key")[1:], whole.column("rng_key")[1:])


def test_a_first_reset_of_some_seeds_the_others_too():
    envs, whole = (vd.make_vec("template", 3, seed=5, backend="python") for _ in range(2))
    envs.reset(options={"reset_mask": [True, False, False]})
    envs.reset()
    whole.reset()
    np.testing.assert_array_equal(envs.column("rng_key"), whole.column("rng_key"))


# Actions


def test_actions_may_be_tensors_lists_and_narrow_integers():
    import torch

    plain = trading(copy=True)
    plain.reset()
    actions = np.array([0, 1, 2])
    expected = plain.step(actions)[1]
    for given in (
        torch.tensor([0, 1, 2]), torch.tensor([0, 1, 2], dtype=torch.int32), [0, 1, 2], (0, 1, 2),
        actions.astype(np.int32), actions.astype(np.uint8), actions[:, None], np.array([0, 9, 1, 9, 2])[::2],
    ):  # fmt: skip
        envs = trading()
        envs.reset()
        np.testing.assert_array_equal(envs.step(given)[1], expected)


def test_continuous_actions_may_be_tensors_that_need_gradients_and_of_other_types():
    import torch

    plain = trading(action="continuous", copy=True)
    plain.reset()
    expected = plain.step(np.array([[0.5], [-1.0], [0.25]], np.float32))[1]
    for given in (
        torch.tensor([[0.5], [-1.0], [0.25]], requires_grad=True), torch.tensor([0.5, -1.0, 0.25]).double(),
        np.array([0.5, -1.0, 0.25]), [0.5, -1.0, 0.25],
    ):  # fmt: skip
        envs = trading(action="continuous")
        envs.reset()
        np.testing.assert_array_equal(envs.step(given)[1], expected)


@pytest.mark.parametrize("actions", [[0.0, 1.0, 2.0], [True, False, True], [0, 1], 0, None, [[0, 1, 2], [0, 1, 2]]])
def test_floats_and_wrong_shapes_are_refused_for_discrete_actions(actions):
    envs = trading()
    envs.reset()
    with pytest.raises(ActionError, match=r"actions have shape .* expected one for each of 3 environments"):
        envs.step(np.asarray(actions))
    if np.ndim(actions) == 0:  # no batch at all, which is a TypeError in Gymnasium's too
        with pytest.raises(TypeError, match="Nothing was stepped"):
            envs.step(actions)
    assert (envs.column("cursor") == envs.column("start")).all()


def test_unchecked_actions_still_have_a_shape():
    envs = trading(check_actions=False)
    envs.reset()
    with pytest.raises(ActionError, match="expected one for each of 3 environments"):
        envs.step(np.zeros(5, np.int64))


def test_one_environment_refuses_illegal_actions():
    env = vd.make("trading", market=MARKET, seed=1)
    env.reset()
    for action in (7, -1, 1.0):
        with pytest.raises(ActionError):
            env.step(action)
    assert env.state()["cursor"] == env.state()["start"]


# What can be looked at


def test_one_environment_renders_a_line_for_people():
    env = vd.make("trading", market=MARKET, render_mode="ansi", seed=1)
    env.reset(options={"cursor": 12})
    line = env.render()
    assert line.startswith("1970-01-01T00:12:00 close ")
    assert "equity 10000.00 cash 10000.00 units 0 entry 0 last order none" in line
    env.step(2)
    assert env.render().startswith("1970-01-01T00:13:00 close ")
    assert "last order opened" in env.render()
    silent = vd.make("trading", market=MARKET, seed=1)
    silent.reset()
    assert silent.render() is None


def test_many_environments_render_a_line_each():
    envs = trading()
    envs.reset(options={"cursor": [10, 11, 12]})
    lines = envs.render()
    assert [line[:19] for line in lines] == [f"1970-01-01T00:{minute}:00" for minute in (10, 11, 12)]
    nothing = vd.make_vec("template", 2, seed=1)
    nothing.reset()
    assert nothing.render() is None
    assert nothing.render_mode is None


@pytest.mark.parametrize("backend", ["native", "python"])
def test_a_column_is_a_copy(backend):
    envs = trading(backend=backend)
    envs.reset()
    cash = envs.column("cash")
    assert cash.shape == (3,)
    cash[:] = 0.0
    assert (envs.column("cash") == 10_000.0).all()
    assert envs.column("code_counts").shape[1:] == (3,)
    env = vd.make("trading", market=MARKET, seed=1)
    env.reset()
    env.state()["cash"][...] = 0.0
    assert env.state()["cash"] == 10_000.0


# Options of reset


def test_an_unknown_reset_option_suggests_the_nearest():
    envs = trading()
    with pytest.raises(
        ConfigError, match=r"unknown reset option 'cursr'; there are reset_mask, cursor, last\. Did you mean 'cursor'"
    ):
        envs.reset(options={"cursr": 3})
    with pytest.raises(ConfigError, match=r"unknown reset option 'cursor'; there are reset_mask\."):
        vd.make_vec("template", 2).reset(options={"cursor": 3})


@pytest.mark.parametrize("mask", [[True], [False, False, False], [[True, False, True]], True, []])
def test_a_mask_has_one_boolean_for_each_environment(mask):
    with pytest.raises(ConfigError, match="reset_mask must be 3 booleans, at least one of them true"):
        trading().reset(options={"reset_mask": mask})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cursor": 0}, "cursor = 0 is not a bar with complete windows; legal: 4 … 79, 84 … 159"),
        ({"cursor": [10, 82, 10]}, "cursor = 82 is not a bar"),
        ({"cursor": 160}, "cursor = 160 is not a bar"),
        ({"cursor": -1}, "cursor = -1 is not a bar"),
        ({"last": 20}, "'last' needs 'cursor'"),
        ({"cursor": 20, "last": 19}, "last must not lie before cursor"),
        ({"cursor": 20, "last": 80}, "last must not lie before cursor or beyond"),
    ],
)
def test_a_start_outside_the_data_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        trading().reset(options=options)


def test_a_start_may_be_chosen_for_some_environments():
    envs = trading()
    envs.reset()
    starts = envs.column("start")
    envs.reset(options={"cursor": 33, "last": 35, "reset_mask": [False, True, False]})
    np.testing.assert_array_equal(envs.column("start"), [starts[0], 33, starts[2]])
    assert envs.column("last")[1] == 35


def test_an_option_of_the_wrong_length_is_refused():
    with pytest.raises(ConfigError, match="cursor"):
        trading().reset(options={"cursor": [10, 11]})


@pytest.mark.parametrize("options", [{"cursor": 10.7}, {"cursor": 10, "last": 12.5}])
def test_half_a_bar_is_refused(options):
    with pytest.raises(ConfigError, match="whole"):
        trading().reset(options=options)


def test_a_step_before_the_first_reset_is_refused():
    for factory in (lambda: trading(), lambda: trading(backend="python")):
        with pytest.raises(ConfigError, match=r"call reset\(\) before the first step\(\)"):
            factory().step(np.zeros(3, np.int64))


def test_a_refused_reset_is_no_reset():
    envs = trading()
    with pytest.raises(ConfigError, match="unknown reset option"):
        envs.reset(options={"cursr": 3})
    with pytest.raises(ConfigError, match=r"call reset\(\) before the first step\(\)"):
        envs.step(np.zeros(3, np.int64))


def test_a_refused_reset_leaves_the_streams_alone():
    envs = trading()
    envs.reset()
    keys = envs.column("rng_key")
    with pytest.raises(ConfigError, match="unknown reset option"):
        envs.reset(seed=99, options={"cursr": 3})
    np.testing.assert_array_equal(envs.column("rng_key"), keys)


# Gymnasium


def test_closing_is_harmless():
    envs = trading()
    envs.reset()
    envs.close()
    envs.close()
    assert envs.closed
    env = vd.make("template", seed=1)
    env.reset()
    env.close()
    env.close()


def test_metadata_and_spaces_are_gymnasiums():
    envs = trading(action="continuous", observation="dict")
    assert isinstance(envs, gymnasium.vector.VectorEnv)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert trading(autoreset=False).metadata["autoreset_mode"] is AutoresetMode.DISABLED
    assert envs.action_space == gymnasium.vector.utils.batch_space(envs.single_action_space, 3)
    assert envs.observation_space == gymnasium.vector.utils.batch_space(envs.single_observation_space, 3)
    assert set(envs.single_observation_space) == {"1m", "2m", "account"}
    assert envs.single_observation_space["1m"].shape == (5, 3)
    single = vd.make("trading", market=MARKET, action="continuous", observation="dict")
    assert single.observation_space == envs.single_observation_space
    assert single.action_space == envs.single_action_space
    assert isinstance(single, gymnasium.Env)


@pytest.mark.parametrize("observation", ["flat", "dict"])
@pytest.mark.parametrize("action", ["levels", "continuous", "brackets"])
def test_gymnasiums_own_vector_environment_agrees_step_by_step(action, observation):
    """SyncVectorEnv seeds environment i with seed + i, as single environments: the list form is the same."""
    values = {"action": action, "episode_length": (3, 6), "fee": (0.0, 0.01), "slippage": 1e-3, "leverage": 5.0}
    world = trading_world(MARKET, **values)
    theirs = SyncVectorEnv(
        [lambda: vd.make(world, observation=observation)] * 3, autoreset_mode=AutoresetMode.SAME_STEP
    )
    ours = vd.make_vec(world, 3, observation=observation, copy=True)
    assert theirs.metadata["autoreset_mode"] is ours.metadata["autoreset_mode"]
    assert theirs.single_observation_space == ours.single_observation_space
    assert_same_observations(ours.reset(seed=[20, 21, 22])[0], theirs.reset(seed=20)[0])
    finished = 0
    for actions in random_actions(ours.single_action_space, 3, 15, seed=6):
        observations, rewards, terminated, truncated, infos = ours.step(actions)
        raw, raw_rewards, raw_terminated, raw_truncated, raw_infos = theirs.step(actions)
        assert_same_observations(observations, raw)
        np.testing.assert_array_equal(rewards, raw_rewards.astype(np.float32))
        np.testing.assert_array_equal(terminated, raw_terminated)
        np.testing.assert_array_equal(truncated, raw_truncated)
        assert ("final_obs" in infos) == ("final_obs" in raw_infos)
        if "final_obs" not in infos:
            continue
        np.testing.assert_array_equal(infos["_final_obs"], raw_infos["_final_obs"])
        for row in np.flatnonzero(infos["_final_obs"]):
            finished += 1
            assert_same_observations(row_of(infos["final_obs"], row), raw_infos["final_obs"][row])
            for name in world.statistics:
                theirs_by_row = raw_infos["final_info"]["statistics"][name]
                assert infos["statistics"][name][row] == theirs_by_row[row], name
    assert finished >= 3


def row_of(observations: Any, row: int) -> Any:
    if isinstance(observations, dict):
        return {name: part[row] for name, part in observations.items()}
    return observations[row]


def assert_same_observations(ours: Any, theirs: Any) -> None:
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for name in ours:
            np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)
    else:
        np.testing.assert_array_equal(ours, theirs)
