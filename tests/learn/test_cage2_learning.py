"""PPO learns to defend CAGE-2's network: a short version, and the scores that the preset promises. All are slow."""

from __future__ import annotations

import pytest

import velodrome as vd
from velodrome.evaluation.cage2.official import LENGTHS, play_official
from velodrome.vector.cuda import unavailable_reason

# Mean returns at 30, 50 and 100 steps of the plain PPO that was published.
PLAIN_PPO = {"b_line": (-5.0, -8.5, -17.5), "meander": (-8.0, -13.0, -23.0)}


def trained(folder, red_agent: str, **settings):
    given = {"device": "cpu", "evaluation.every_steps": None, "logging.folder": str(folder), **settings}
    return vd.train("cage2", mode="quiet", evaluate=False, **{"params.red_agent": red_agent, **given})


@pytest.mark.slow
def test_a_short_training_defends_far_better_than_reacting(tmp_path):
    """Restoring whatever is shown as compromised scores about −159 over 100 steps, doing nothing −1,134."""
    run = trained(tmp_path, "b_line", steps=1_200_000, num_envs=256)
    scores = play_official(run.policy, "agent", run.config.params, episodes=200, baselines=False)
    assert scores.of("agent", "b_line", 100).mean > -60.0
    assert scores.of("agent", "b_line", 30).mean > -20.0


@pytest.mark.slow
@pytest.mark.parametrize("red_agent", PLAIN_PPO)
def test_the_preset_reaches_the_published_plain_ppo(red_agent, tmp_path):
    run = trained(tmp_path, red_agent)
    scores = play_official(run.policy, "agent", run.config.params, episodes=2_000, baselines=False)
    for length, published in zip(LENGTHS, PLAIN_PPO[red_agent], strict=True):
        assert scores.of("agent", red_agent, length).mean > published


# The best published means against each Red agent, whoever's they are.
LEADER_BOARD = {"b_line": (-3.5, -5.9, -11.4), "meander": (-5.6, -8.7, -16.6)}


@pytest.mark.slow
@pytest.mark.skipif(unavailable_reason("cuda") is not None, reason="no CUDA device")
def test_the_gpu_preset_passes_the_leader_board_against_both(tmp_path):
    """One seed and 5,000 episodes; an agent that never restores User2 scores −11.9 against B_line over 100 steps."""
    run = vd.train("cage2_gpu", mode="quiet", evaluate=False, **{"logging.folder": str(tmp_path)})
    scores = play_official(run.policy, "agent", run.config.params, episodes=5_000, baselines=False)
    for red, published in LEADER_BOARD.items():
        for length, mean in zip(LENGTHS, published, strict=True):
            assert scores.of("agent", red, length).mean > mean - 0.1  # two standard errors
    assert all(scores.of("agent", "sleep", length).mean == 0.0 for length in LENGTHS)
