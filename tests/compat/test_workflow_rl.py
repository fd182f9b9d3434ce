"""The CAGE-2 workflow project's lines, and its flags."""

from __future__ import annotations

import numpy as np
import pytest

import velodrome as vd
from velodrome import cli
from velodrome.cli.training import episode_budget
from velodrome.compat.workflow_rl import B_lineAgent, RedMeanderAgent, SleepAgent, VectorizedCAGE2Envs
from velodrome.envs.cage2.names import HOSTS
from velodrome.errors import ConfigError

SEED = 3


@pytest.fixture(scope="module")
def played():
    """An episode against B_line, as the project plays it, and the actions."""
    envs = VectorizedCAGE2Envs(n_envs=100, scenario_path="Scenario2.yaml", red_agent_type=B_lineAgent, seed=SEED)
    actions = np.random.default_rng(0).integers(0, 145, (100, 100))
    observations = envs.reset()
    steps = [envs.step_all(chosen) for chosen in actions]
    return envs, observations, steps, actions


def test_the_lines_run_and_are_velodromes_environment(played):
    envs, observations, steps, actions = played
    assert observations.shape == (100, 52) == (envs.n_envs, *envs.observation_shape)
    own = vd.make_vec("cage2", 100, seed=SEED, red_agent="b_line", observation_rule="corrected", copy=True)
    np.testing.assert_array_equal(own.reset()[0], observations)
    for chosen, step in zip(actions, steps, strict=True):
        shown, rewards, terminated, truncated, _ = own.step(chosen)
        np.testing.assert_array_equal(step.observations, shown)
        np.testing.assert_array_equal(step.rewards, rewards)
        np.testing.assert_array_equal(step.dones, terminated | truncated)


def test_an_info_says_how_an_episode_ended(played):
    _, _, steps, _ = played
    last = steps[-1]
    assert last.dones.all()
    assert not any(info for step in steps[:-1] for info in step.infos)
    total = np.sum([step.rewards for step in steps], axis=0)
    assert last.infos[7]["episode"] == {"r": pytest.approx(total[7], rel=1e-5), "l": 100}
    assert last.infos[7]["terminal_observation"].shape == (52,)


def test_those_that_are_ready_are_all(played):
    envs, _, _, _ = played
    ready = envs.step_async(np.zeros(100, int))
    np.testing.assert_array_equal(ready.env_ids, np.arange(100))
    assert len(ready.infos) == len(ready.rewards) == 100


def test_some_environments_begin_anew(played):
    envs, first, _, _ = played
    envs.step(np.ones(100, int))
    shown = envs.reset([4, 7])
    np.testing.assert_array_equal(shown[[4, 7]], first[[4, 7]])  # Scenario2 begins alike
    assert [state["step"] for state in envs.get_true_states()][3:8] == [2, 0, 2, 2, 0]
    with pytest.raises(ConfigError, match="from 0 to 99"):
        envs.reset([100])


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"n_envs": 0}, "n_envs = 0: needs a whole number of at least 1"),
        ({"red_agent_type": "RedMeander"}, "no such Red agent; there are B_lineAgent.*Did you mean 'RedMeanderAgent'"),
        ({"red_agent_type": int}, "red_agent_type = int"),
        ({"red_agent_type": None}, "red_agent_type = None: there is no such Red agent"),
        ({"n_envs": 1, "max_steps": 0}, "^max_steps = 0: .*max_steps: steps in an episode"),
        ({"scenario_path": "Scenario1b.yaml"}, r"this is not Scenario2\.yaml.*other scenarios with CybORG"),
    ],
)
def test_typical_mistakes_are_told_in_a_sentence(given, told):
    with pytest.raises(ConfigError, match=told):
        VectorizedCAGE2Envs(**given)


def test_the_scenarios_file_is_looked_at(tmp_path):
    path = tmp_path / "Scenario2.yaml"
    path.write_text("Hosts:\n  Defender: {}\n  Attacker: {}\n")
    with pytest.raises(ConfigError, match="its Hosts are Defender, Attacker, not those of Scenario2"):
        VectorizedCAGE2Envs(scenario_path=path)
    path.write_text("Hosts:\n" + "".join(f"  {host}: {{}}\n" for host in HOSTS))
    VectorizedCAGE2Envs(n_envs=1, scenario_path=path, red_agent_type=RedMeanderAgent).close()


def test_agents_are_named_by_class_or_text():
    for agent, name in ((SleepAgent, "sleep"), ("SleepAgent", "sleep"), ("mixture", "mixture")):
        envs = VectorizedCAGE2Envs(1, red_agent_type=agent)
        assert envs.envs.world.params.red_agent == vd.make_vec("cage2", 1, red_agent=name).world.params.red_agent


@pytest.mark.parametrize(
    ("flags", "episodes"),
    [((None, None), None), ((None, 1_000), 1_000), ((50, None), 50 * 512), ((1, 1_000), 512), ((50, 1_000), 1_000)],
)
def test_the_flags_make_a_budget_of_episodes(flags, episodes):
    assert episode_budget(lambda: 512, *flags) == episodes


def test_a_budget_of_none_is_refused():
    with pytest.raises(ConfigError, match="--max-episodes 0: a training needs at least one"):
        episode_budget(200, 0, None)


def test_a_flag_that_is_wrong_is_named(capsys):
    for flag in ("--n-envs", "--update-steps"):
        assert cli.run(["train", "cage2", flag, "0"]) == cli.REFUSED
        assert f"{flag} = 0: needs a whole number of at least 1" in capsys.readouterr().err


def test_the_flags_train_and_go_on(tmp_path):
    small = [f"logging.folder={tmp_path}", "evaluation.every_steps=null", "device=cpu", "--quiet", "--no-evaluation"]
    flags = ["--n-envs", "8", "--update-steps", "50", "--max-episodes", "1", "--total-episodes", "100"]
    assert cli.run(["train", "cage2", *flags, *small, "normalise_rewards=false"]) == 0
    run = vd.Run.open("latest", tmp_path)
    assert (run.config.num_envs, run.config.ppo.rollout_length, run.config.episodes) == (8, 50, 8)
    assert run.config.steps == 800
    again = ["train", "--resume", str(run.path), "--max-episodes", "2", "--quiet", "--no-evaluation"]
    assert cli.run(again) == 0
    assert vd.Run.open("latest", tmp_path).config.episodes == 16
