"""An algorithm from outside the package: its section is named after it and checked by its own model."""

from __future__ import annotations

import json

import pytest
from pydantic import Field

from velodrome.errors import ConfigError
from velodrome.learn.catalog import ALGORITHMS, AlgorithmEntry, register_algorithm
from velodrome.learn.config import LearnerConfig
from velodrome.runs.config.explain import explain, help_text, markdown_table, to_yaml
from velodrome.runs.config.files import load_run_config, parse_yaml
from velodrome.runs.config.run_config import RunConfig


class ScoutConfig(LearnerConfig):
    """Scouting ahead."""

    rollout_length: int = Field(16, ge=1, description="steps between two updates")
    scouts: int = Field(3, ge=1, le=9, description="scouts that look ahead")


@pytest.fixture(autouse=True)
def scout(monkeypatch):
    """Register the algorithm `scout` for one test."""
    monkeypatch.setattr(ALGORITHMS, "_entries", dict(ALGORITHMS._entries))
    own = {"network_settings": ("kind", "hidden"), "unread": ("compile",)}
    register_algorithm(AlgorithmEntry("scout", config=ScoutConfig, learner=object, network=object, **own))


def refusal(source, overrides=()) -> str:
    with pytest.raises(ConfigError) as error:
        load_run_config(source, overrides)
    return str(error.value)


def test_its_section_is_read_from_files_and_overrides(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("algorithm: scout\nscout:\n  scouts: 5\n  learning_rate: 1e-3\n")
    config = load_run_config(path, ["gamma=0.9"])
    assert config.learner == ScoutConfig(scouts=5, learning_rate=1e-3, gamma=0.9)
    assert config.learner is config.scout
    assert load_run_config(None, ["algorithm=scout"]).learner == ScoutConfig()
    assert load_run_config(None, {"algorithm": "scout", "scout": ScoutConfig(scouts=2)}).learner.scouts == 2
    assert RunConfig(algorithm="scout", scout={"scouts": 4}).learner.scouts == 4


def test_content_hash_and_yaml_hold_it():
    config = load_run_config("smoke", ["algorithm=scout", "scouts=5"])
    content = config.content()
    assert content["scout"] == ScoutConfig(scouts=5).model_dump(mode="json", exclude={"compile"})
    assert content["network"].keys() == {"kind", "hidden"}
    assert not {"ppo", "dqn"} & set(content)
    assert RunConfig(**json.loads(json.dumps(content))) == config
    assert load_run_config(config) == config
    assert config.hash != load_run_config(config, ["scouts=6"]).hash
    assert config.hash != load_run_config(config, ["scout.weight_decay=0.5"]).hash
    for comments in (True, False):
        assert load_run_config(parse_yaml(to_yaml(config, comments))) == config
    assert "# scouts that look ahead. Takes: whole number 1 … 9\n  scouts: 5\n" in to_yaml(config)


def test_it_is_explained_like_the_others():
    assert "scout.scouts=3" in help_text("scout")
    assert "scout: Scouting ahead." in help_text()
    assert "scout.scouts=3" in help_text("scout.scouts")
    assert "`scout.scouts`" in markdown_table("scout")
    assert explain("scout").renderables[0].row_count == len(ScoutConfig.model_fields) - 1
    assert "bars that a convolution sees, unit: rows of the window (not read by scout)" in " ".join(
        help_text("network.kernel").split()
    )
    assert "Takes: one of ppo, dqn, sac, scout" in help_text("algorithm")


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (
            ["algorithm=scuot"],
            "algorithm = 'scuot': unknown algorithm 'scuot'; there are ppo, dqn, sac, scout. Did you",
        ),
        (["algorithm=scout", "scout.scouts=0"], "scout.scouts = 0: not legal; it takes: whole number 1 … 9. It is: "),
        (["algorithm=scout", "scouts=true"], "scout.scouts = true: not legal"),
        (["algorithm=scout", "scout=3"], "scout = 3: it is a section; write settings in it, such as scout.gamma."),
        (["algorithm=scout", "scout.scuts=1"], "unknown key 'scout.scuts'. Did you mean 'scout.scouts'? Legal in s"),
        (["algorithm=scout", "ppo.clip=0.1"], "ppo.clip is set and would have no effect: algorithm is scout."),
        (["scout.scouts=4"], "scout.scouts is set and would have no effect: algorithm is ppo."),
        (["scouts=4"], "scout.scouts is set and would have no effect: algorithm is ppo."),
        (["algorithm=scout", "scout.compile=true"], "algorithm is scout, which does not read compile (`velodrome conf"),
        (["algorithm=scout", "network.kernel=3"], "does not read kernel (of network it reads kind, hidden). Leave net"),
        (["algorithm=scout", "steps=10"], "num_envs × scout.rollout_length is 256 × 16 = 4,096"),
    ],
)
def test_what_is_wrong_with_it_is_told(overrides, told):
    assert told in refusal(None, overrides)


def test_several_mistakes_in_it_are_told_at_once():
    message = refusal({"algorithm": "scout", "scout": {"scouts": 0, "gamma": 2, "clip": 1}, "seed": -1})
    told = [line.split(" ")[0] for line in message.splitlines()]
    assert sorted(told) == ["scout.gamma", "scout.scouts", "seed", "unknown"]


def test_it_is_left_behind_when_another_is_chosen_later(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("algorithm: scout\nscout: {scouts: 5}\n")
    config = load_run_config(path, ["algorithm=ppo"])
    assert "scout" not in config.content()
    assert config == load_run_config({})


def test_a_model_made_by_hand_checks_it_too():
    with pytest.raises(ValueError, match=r"scout.scouts is set and would have no effect: algorithm is ppo"):
        RunConfig(scout={"scouts": 4})
    assert "scout" not in RunConfig(scout={}).content()
    with pytest.raises(ValueError, match=r"scout\.scouts\n.*greater than or equal to 1"):
        RunConfig(algorithm="scout", scout={"scouts": 0})
    with pytest.raises(ValueError, match=r"unknown key 'stpes'\. Did you mean 'steps'\?"):
        RunConfig(stpes=3)


@pytest.mark.parametrize("key", ["augment.noise", "augment.copies", "network.dropout"])
def test_what_it_has_not_said_that_it_takes_part_in_is_refused(key):
    assert "would have no effect: algorithm is scout" in refusal(None, ["algorithm=scout", f"{key}=0.1"])
