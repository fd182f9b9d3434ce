"""Loading a run's configuration: files, presets and overrides, and the messages for all that can be wrong in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from velodrome.errors import ConfigError
from velodrome.learn.config import PPOConfig
from velodrome.runs.config.files import describe_presets, load_run_config, preset_names
from velodrome.runs.config.run_config import RunConfig

SMALL = {"steps": 1024, "num_envs": 8}


def refusal(source=None, overrides=()) -> str:
    """Return the message with which a configuration is refused."""
    with pytest.raises(ConfigError) as error:
        load_run_config(source, overrides)
    return str(error.value)


@pytest.fixture
def write(tmp_path):
    def write_file(text: str, name: str = "run.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write_file


# Sources


def test_a_runs_own_file_may_hold_what_older_versions_took_without_a_word(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("algorithm: dqn\ndqn: {engine: autograd}\nnetwork: {shared: true, hidden: [8]}\n")
    with pytest.raises(ConfigError, match="does not read shared"):
        load_run_config(path)
    (tmp_path / "run.json").write_text("{}")
    assert load_run_config(path) == load_run_config({"algorithm": "dqn", "network.hidden": [8]})


def test_yaml_and_toml_say_the_same(write):
    yaml = write(
        "steps: 5_000\nnum_envs: 16\nppo:\n  learning_rate: 1e-3\nnetwork: {hidden: [32, 16]}\nparams: {fee: 5e-4}\n"
    )
    toml = write(
        "steps = 5_000\nnum_envs = 16\nppo.learning_rate = 1e-3\n[network]\nhidden = [32, 16]\n[params]\nfee = 5e-4\n",
        "run.toml",
    )
    config = load_run_config(yaml)
    assert config == load_run_config(str(toml))
    assert config.ppo.learning_rate == 0.001
    assert config.network.hidden == (32, 16)
    assert config.params == {"fee": 0.0005}


def test_a_file_starts_from_the_defaults_and_a_preset_from_its_own(write):
    assert load_run_config(write("")) == RunConfig()
    assert load_run_config(write("steps: 9_000\n")) == RunConfig(steps=9_000)
    assert load_run_config() == load_run_config("trading")


def test_a_file_may_start_from_a_preset(write):
    config = load_run_config(write("preset: smoke\nppo: {clip: 0.1}\nparams: {fee: 0.001}\n"))
    smoke = load_run_config("smoke")
    assert config == load_run_config(smoke, ["ppo.clip=0.1", "params.fee=0.001"])
    assert config.params == {"episode_length": 64, "fee": 0.001}
    assert load_run_config({"preset": "smoke"}) == smoke
    assert "preset = 'smokes': there is no such preset" in refusal(write("preset: smokes\n"))


def test_mappings_and_configurations_are_sources_too():
    assert load_run_config(SMALL) == RunConfig(**SMALL)
    assert load_run_config({**SMALL, "ppo": PPOConfig(clip=0.1)}) == RunConfig(**SMALL, ppo={"clip": 0.1})
    assert load_run_config({**SMALL, "ppo.clip": 0.1}) == RunConfig(**SMALL, ppo={"clip": 0.1})
    assert load_run_config(RunConfig(**SMALL), ["seed=3"]) == RunConfig(**SMALL, seed=3)
    assert "a configuration is 3; give the path" in refusal(3)


def test_a_source_is_not_changed_by_loading():
    source = {"ppo": {"clip": 0.1}, "params": {"fee": 0.1}}
    load_run_config(source, ["ppo.clip=0.3", "params.fee=0.2"])
    assert source == {"ppo": {"clip": 0.1}, "params": {"fee": 0.1}}


def test_an_empty_section_is_one_of_defaults(write):
    assert load_run_config(write("ppo:\nparams:\n  # fee: 0.1\nmarket: {}\n")) == RunConfig()


def test_a_later_layer_wins_field_by_field(write):
    path = write("seed: 1\nppo: {clip: 0.1, epochs: 7}\nmarket: {windows: {1m: 4, 5m: 2}}\n")
    config = load_run_config(path, ["ppo.clip=0.3", "market.windows={1h: 3}"])
    assert (config.seed, config.ppo.clip, config.ppo.epochs) == (1, 0.3, 7)
    assert config.market.windows == {"1h": 3}  # one value, not merged


def test_every_preset_says_what_it_is_for():
    described = describe_presets()
    assert tuple(described) == preset_names()
    assert all(len(text) > 20 and text.endswith(".") for text in described.values())


# Overrides


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("ppo.learning_rate=1e-3", lambda config: config.ppo.learning_rate == 1e-3),
        ("learning_rate=1E-3", lambda config: config.ppo.learning_rate == 1e-3),
        ("steps=2e6", lambda config: config.steps == 2_000_000),
        ("steps=3_000_000", lambda config: config.steps == 3_000_000),
        ("market.windows=16", lambda config: config.market.windows == 16),
        ("windows={1m: 16, 1h: 4}", lambda config: config.market.windows == {"1m": 16, "1h": 4}),
        ("network.hidden=[128,128]", lambda config: config.network.hidden == (128, 128)),
        ("params.fee=0.0005", lambda config: config.params["fee"] == 0.0005),
        ("fee=[1e-4, 1e-3]", lambda config: config.params["fee"] == [1e-4, 1e-3]),
        ("params.preset=intraday", lambda config: config.params["preset"] == "intraday"),
        ("market.source=prices/", lambda config: config.market.source == "prices/"),
        ("logging.store=postgresql://me:secret@host/runs", lambda config: config.logging.store[-10:] == "@host/runs"),
        ("checkpoint.every_seconds=null", lambda config: config.checkpoint.every_seconds is None),
        ("checkpoint.every_seconds=", lambda config: config.checkpoint.every_seconds is None),
        ("normalise_rewards=no", lambda config: config.ppo.normalise_rewards is False),
        ("scaler=none", lambda config: config.market.scaler == "none"),
        ("symbols=ON,NO", lambda config: config.market.symbols == ("ON", "NO")),
        ("symbols=['EUR,USD']", lambda config: config.market.symbols == ("EUR,USD",)),
        ("features=log_return, rsi_14", lambda config: config.market.features == ("log_return", "rsi_14")),
        ("symbols=[ON, NO, Y]", lambda config: config.market.symbols == ("ON", "NO", "Y")),
        ("name='12'", lambda config: config.name == "12"),
        (" seed = 4", lambda config: config.seed == 4),
    ],
)
def test_an_override_is_read(text, read):
    assert read(load_run_config(None, [text]))


def test_overrides_may_be_a_mapping_as_python_writes_it():
    config = load_run_config(
        None, {"steps": 10_000, "learning_rate": 1e-3, "ppo": {"clip": 0.1}, "market.source": Path("x")}
    )
    assert (config.steps, config.ppo.learning_rate, config.ppo.clip, config.market.source) == (10_000, 1e-3, 0.1, "x")


def test_the_last_of_two_equal_overrides_wins():
    assert load_run_config(None, ["seed=1", "seed=2"]).seed == 2


def test_a_short_key_goes_to_the_section_in_use():
    assert load_run_config(None, ["learning_rate=0.01"]).ppo.learning_rate == 0.01
    assert load_run_config("dqn", ["learning_rate=0.01"]).dqn.learning_rate == 0.01
    assert load_run_config(None, ["learning_rate=0.01", "algorithm=dqn"]).dqn.learning_rate == 0.01
    assert load_run_config(None, ["reversion=0.1", "source=ou"]).market.reversion == 0.1
    assert load_run_config("cartpole", ["clip=0.1"]).ppo.clip == 0.1


def test_a_fee_is_a_parameter_of_every_market_environment():
    assert load_run_config({"env": "portfolio"}, ["fee=0.001"]).params == {"fee": 0.001}
    assert load_run_config({"env": "trading"}, ["fee=0.001"]).params == {"fee": 0.001}
    with_preset = load_run_config("portfolio", ["market.source=prices/", "fee=0.001"])  # which sets both fees
    assert {"buy_fee", "sell_fee"}.isdisjoint(with_preset.params)
    assert with_preset.params["fee"] == 0.001
    given = load_run_config("portfolio", ["market.source=prices/", "params.buy_fee=0.002"]).params
    assert (given["buy_fee"], given.get("fee")) == (0.002, None)
    with pytest.raises(ConfigError, match=r"Did you mean 'params\.fee'"):
        load_run_config({"env": "portfolio"}, ["params.fees=0.001"])


def test_a_short_key_of_several_sections_is_refused_with_the_candidates():
    assert refusal(None, ["every_steps=3"]) == (
        "'every_steps' may mean checkpoint.every_steps or evaluation.every_steps; write which."
    )
    assert "'clip' may mean market.clip or ppo.clip" in refusal(None, ["clip=0.1"])
    assert "learning_rate and ppo.learning_rate are one setting" in refusal(
        None, ["learning_rate=1e-3", "ppo.learning_rate=1e-4"]
    )


@pytest.mark.parametrize("text", ["steps", "=3", "--steps 3", "ppo.clip:0.3"])
def test_what_is_no_setting_is_refused(text):
    assert f"{text!r} is not a setting; write key=value" in refusal(None, [text])


def test_a_value_that_is_no_yaml_is_refused_with_its_place():
    assert "the value of 'network.hidden=[64', line 1, column 4: not legal YAML" in refusal(
        None, ["network.hidden=[64"]
    )


def test_a_preset_is_no_override():
    assert "a preset is named in place of a configuration file" in refusal(None, ["preset=gpu"])


# Unknown keys


@pytest.mark.parametrize(
    ("key", "suggested"),
    [
        ("ppo.learning_rat", "ppo.learning_rate"),
        ("stpes", "steps"),
        ("learnin_rate", "ppo.learning_rate"),
        ("params.fe", "params.fee"),
        ("fe", "params.fee"),
        ("market.fee", "params.fee"),
        ("ppo.hidden", "network.hidden"),
        ("network.clip", "market.clip"),
        ("evaluation.splits", "market.splits"),
        ("spread", "params.half_spread"),
        ("windos", "market.windows"),
        ("commission", None),
        ("modle", None),
        ("ppo.zzz", None),
    ],
)
def test_an_unknown_key_is_told_in_full_with_the_nearest(key, suggested):
    message = refusal(None, [f"{key}=1"])
    assert f"unknown key {key!r}." in message
    assert (f"Did you mean {suggested!r}?" in message) == (suggested is not None)
    section = key.partition(".")[0] if "." in key else ""
    legal = {"ppo": "gae_lambda", "market": "windows", "params": "leverage", "network": "hidden", "evaluation": "seeds"}
    assert f"Legal in {section}: " in message if section else "Legal: name, seed, seeds, ensemble, env" in message
    assert legal.get(section, "checkpoint") in message


def test_an_unknown_key_of_a_file_names_the_file(write):
    path = write("ppo:\n  learning_rat: 1\n")
    assert refusal(path).startswith(f"{path}: unknown key 'ppo.learning_rat'. Did you mean 'ppo.learning_rate'?")
    assert refusal(write("learning_rate: 1\n")).startswith(f"{path}: unknown key 'learning_rate'. Did you mean 'ppo.")
    assert "the key 3 is of type int" in refusal(write("3: 4\n"))
    assert "the key 3 is of type int" in refusal(write("ppo: {3: 4}\n"))


def test_a_key_within_a_value_is_refused():
    assert "market.splits is one value. Write it whole, such as market.splits={train: …}" in refusal(
        None, ["market.splits.train=0.5"]
    )


def test_every_mistake_is_told_at_once(write):
    message = refusal(write("stpes: 3\nppo: {gamma: 2, clipp: 1}\nmarket: {windows: x}\n"))
    assert len(message.splitlines()) == 4
    assert all(key in message for key in ("'stpes'", "ppo.gamma = 2", "'ppo.clipp'", "market.windows = 'x'"))


def test_an_unknown_algorithm_or_environment_is_told_with_the_file_and_the_other_mistakes(write):
    path = write("algorithm: dqqn\nsteps: 0\ndqn: {gamma: 0.9}\n")
    first, second = refusal(path, ["learning_rate=1e-3"]).splitlines()
    assert (
        first == f"{path}: algorithm = 'dqqn': unknown algorithm 'dqqn'; there are ppo, dqn, sac. Did you mean 'dqn'?"
    )
    assert second.startswith(f"{path}: steps = 0: not legal")
    message = refusal(write("env: tradng\nmarket: {session: day}\nparams: {spread: 1}\n"), ["leverage=2"])
    assert message.startswith(f"{path}: env = 'tradng': there is no such environment. Did you mean 'trading'?")
    assert len(message.splitlines()) == 1


# Wrong values


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("ppo.gamma=1.5", "ppo.gamma = 1.5: not legal; it takes: number 0 … 1. It is: discount of the next step's"),
        ("ppo.clip=null", "ppo.clip = null: not legal; it takes: number > 0 and ≤ 10. It is: "),
        ("ppo.epochs=many", "ppo.epochs = 'many': not legal; it takes: whole number 1 … 1,000. It is: passes over"),
        ("ppo.epochs=1.5", "ppo.epochs = 1.5: not legal; it takes: whole number"),
        ("ppo.schedule=square", "ppo.schedule = 'square': not legal; it takes: one of constant, linear, cosine."),
        ("algorithm=pppo", "unknown algorithm 'pppo'; there are ppo, dqn, sac. Did you mean 'ppo'?"),
        ("steps=true", "steps = true: not legal; it takes: whole number ≥ 1."),
        ("market.windows=true", "market.windows = true: not legal; it takes: whole number ≥ 1, or {timeframe: "),
        ("market.windows=abc", "market.windows = 'abc': not legal; it takes: whole number ≥ 1, or {timeframe: "),
        ("market.windows=0", "market.windows = 0: not legal; it takes: whole number ≥ 1, or {timeframe: "),
        ("network.hidden=[0]", "network.hidden = [0]: needs one or more widths from 1 to 65536. It is: "),
        ("network.kind=mpl", "network.kind = 'mpl': no network 'mpl'; there are mlp,"),
        ("name=12", "name = 12: not legal; it takes: letters, digits"),
        ("name=12", "(quotes make a text of it)"),
        ("name=a/b", "name = 'a/b': not legal"),
        ("env=3", "env = 3: not legal; it takes: name of an environment"),
        ("env=tradng", "env = 'tradng': there is no such environment. Did you mean 'trading'?"),
        ("env=CartPole-v9", "Did you mean 'CartPole-v1'?"),
        ("ppo=3", "ppo = 3: it is a section; write settings in it, such as ppo.gamma."),
        ("params=3", "params = 3: not legal; it takes: mapping of names to values"),
        ("params.fee=0.9", "params.fee = 0.9: out of range; legal: 0 … 0.5 (fraction of notional). fee: fee on"),
        ("params.fee=abc", "params.fee = 'abc': needs a number"),
        ("params.reward=sharp", "params.reward = 'sharp': Input should be 'log_return'"),
        ("params.preset=intradya", "params: unknown preset 'intradya'; there are torchtrade, intraday. Did"),
        ("steps=10", "steps = 10 is less than one rollout: num_envs × ppo.rollout_length is 256 × 32 = 8,192."),
        ("evaluation.split=valid", "evaluation.split = 'valid': market.splits has train, validation, test. Did you"),
        ("market.splits={train: 0.5, later: 0.5}", "evaluation.split = 'validation': market.splits has train, later."),
        ("market.splits={first: 1.0}", "market.splits has first and no 'train'"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_told_with_key_value_and_what_is_legal(override, told):
    assert told in refusal(None, [override])


def test_parameters_that_contradict_each_other_are_refused():
    message = refusal(None, ["params.funding=0.01", "params.funding_column=rate"])
    assert message == "params: give either funding or funding_column, not both"


def test_a_function_cannot_be_kept_in_a_configuration():
    def reward(old, new):
        return 0.0

    assert "a run's configuration is kept as text" in refusal({"params": {"reward": reward}})
    assert "a run's configuration is kept as text" in refusal({"env": "CartPole-v1", "params": {"x": reward}})


def test_parameters_of_other_environments_are_passed_on_as_they_are():
    config = load_run_config("cartpole", ["params.sutton_barto_reward=true"])
    assert config.params == {"sutton_barto_reward": True}
    assert load_run_config({**SMALL, "env": "template", "params": {"momentum": 1}}).params == {"momentum": 1.0}
    assert "Did you mean 'params.momentum'?" in refusal({"env": "template", "params": {"momentun": 1}})


# Settings without effect


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["algorithm=dqn", "ppo.clip=0.1"], "ppo.clip is set and would have no effect: algorithm is dqn."),
        (["dqn.double=true"], "dqn.double is set and would have no effect: algorithm is ppo."),
        (["algorithm=dqn", "dqn.engine=auto"], "dqn, which does not read engine (`velodrome config dqn` lists what"),
        (
            ["algorithm=dqn", "shared=true"],
            "network.shared is set and would have no effect: algorithm is dqn, which do",
        ),
        (
            ["algorithm=dqn", "head=gaussian"],
            "does not read head (of network it reads kind, hidden, activation, layer_",
        ),
        (["source=ou", "phi=0.1"], "market.phi is set and would have no effect: market.source is the built-in process"),
        (["source=prices/", "market.length=9"], "market.source is a path (prices/), and length is for a built-in"),
        (["timezone=Europe/Berlin"], "market.timezone is set and would have no effect"),
        (["env=CartPole-v1", "market.windows=3", "params={}"], "env is CartPole-v1, which plays on no market"),
        (["env=CartPole-v1", "evaluation.split=test"], "evaluation.split is set and would have no effect"),
    ],
)
def test_a_setting_without_effect_is_refused(overrides, told):
    assert told in refusal(None, overrides)


def test_a_source_that_is_a_list_is_refused_unless_an_override_replaces_it(write):
    path = write("market:\n  source: [a, b]\n")
    assert "market.source" in refusal(path, ["steps=100"])
    assert "market.source" in refusal(path, ["market.source=[c]"])
    assert load_run_config(path, ["market.source=prices/"]).market.source == "prices/"


def test_a_file_that_sets_the_other_algorithm_is_refused(write):
    path = write("algorithm: dqn\nppo:\n  clip: 0.2\n")
    assert refusal(path) == (
        f"{path}: ppo.clip is set and would have no effect: algorithm is dqn. Leave ppo.clip out, or change algorithm."
    )


def test_of_a_section_without_effect_one_setting_is_told(write):
    message = refusal(write("algorithm: dqn\nppo: {clip: 0.2, epochs: 3}\nsedd: 3\n"))
    assert [line.partition(": ")[2][:14] for line in message.splitlines()] == ["ppo.clip is se", "unknown key 's"]


def test_a_section_that_does_not_exist_is_told_with_those_that_do():
    message = refusal(None, ["pppo.clip=0.1"])
    assert message == (
        "unknown key 'pppo.clip'. Did you mean 'ppo.clip'? Sections: vector, market, network, ppo, dqn, sac, augment, "
        "teacher, checkpoint, evaluation, logging, resources."
    )


def test_a_choice_that_an_override_replaces_may_be_unknown(write):
    path = write("env: tradng\nalgorithm: pppo\nparams: {fee: 0.1}\n")
    config = load_run_config(path, ["env=trading", "algorithm=ppo"])
    assert (config.env, config.algorithm, config.params) == ("trading", "ppo", {})


def test_choosing_otherwise_later_leaves_the_earlier_settings_behind(write):
    path = write("algorithm: ppo\nppo: {clip: 0.3}\nmarket: {source: ar1, phi: 0.5}\n")
    config = load_run_config(path, ["algorithm=dqn", "market.source=ou"])
    assert config.ppo == PPOConfig()
    assert config.market.phi == 0.3
    assert load_run_config("gpu", ["algorithm=dqn"]).algorithm == "dqn"


# Files that cannot be read


def test_a_missing_file_is_told_with_what_is_near(write, tmp_path, monkeypatch):
    assert "no such preset. Did you mean 'cartpole'? Presets: trading, cage2" in refusal("cartpol")
    assert "Did you mean 'cartpole'?" in refusal("cartpol.yaml")
    write("", "mine.yaml")
    monkeypatch.chdir(tmp_path)
    assert "Did you mean 'mine.yaml'?" in refusal("mien.yaml")
    assert "there is no configuration file" in refusal("steps: 1\n" * 500)


def test_a_folder_and_an_unknown_suffix_are_refused(write, tmp_path):
    assert "is a folder" in refusal(tmp_path)
    assert "a configuration file ends in .yaml, .yml, .toml" in refusal(write("", "run.ini"))


def test_broken_files_are_told_with_line_and_column(write):
    path = write("steps: 3\nppo: {clip: 0.1\nseed: 2\n")
    assert f"{path}, line 3, column 5: not legal YAML" in refusal(path)
    path = write("steps: 3\nsteps: 4\n")
    assert f'{path}, line 2, column 1: not legal YAML: found duplicate key "steps"' in refusal(path)
    path = write("steps = 3\nseed = = 2\n", "run.toml")
    message = refusal(path)
    assert f"{path} is not legal TOML" in message
    assert "line 2, column 8" in message


def test_a_file_without_keys_is_refused(write, tmp_path):
    assert "holds a list where keys and values are needed" in refusal(write("- a\n- b\n"))
    assert "holds a str where" in refusal(write("hello"))
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00steps")
    assert "binary.yaml cannot be read: it is not UTF-8 text" in refusal(binary)
    assert "not legal YAML" in refusal(write("a: \x07\n"))


def test_another_environment_takes_no_parameters_of_the_one_before(write):
    chosen = load_run_config(None, ["env.id=CartPole-v1"])
    assert chosen.params == {}
    assert chosen.ppo.gamma == RunConfig().ppo.gamma  # that of the default preset is for its market
    assert load_run_config("trading", {"env": "CartPole-v1"}).params == {}
    assert load_run_config("trading", {"env": "trading"}).params == {"episode_length": 256}
    path = write("preset: trading\nenv: CartPole-v1\nparams: {sutton_barto_reward: true}\n")
    assert load_run_config(path).params == {"sutton_barto_reward": True}
