"""The models of a run's configuration: defaults that agree with the functions they feed, markets, hashes."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import velodrome as vd
from velodrome.bars.synthetic import KINDS
from velodrome.envs.trading.config import PRESETS as TRADING_PRESETS
from velodrome.envs.trading.config import trading_config
from velodrome.errors import BackendError, ConfigError
from velodrome.runs.config.files import load_run_config, load_with_origins, preset_names
from velodrome.runs.config.parameters import price_data, resolved_parameters
from velodrome.runs.config.run_config import RunConfig
from velodrome.runs.config.sections import FOR_FILES, SYNTHETIC, MarketConfig
from velodrome.runs.setup import build_market
from velodrome.tables.scaling import SCALER_KINDS
from velodrome.tables.splits import DEFAULT_SPLITS

FIELDS = MarketConfig.model_fields


def defaults(function) -> dict:
    return {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }


# Defaults


@pytest.mark.parametrize("function", [vd.synthetic_bars, vd.build_market, vd.build_basket, vd.read_bars])
def test_the_market_has_the_defaults_of_the_functions_that_make_it(function):
    # The market's splits are written out, its timeframe and symbols mean "as the source has them".
    apart = {"splits", "timeframe", "symbols"}
    shared = {name: value for name, value in defaults(function).items() if name in FIELDS and name not in apart}
    assert len(shared) >= 2
    assert {name: FIELDS[name].get_default(call_default_factory=True) for name in shared} == shared


def test_the_market_takes_every_argument_of_those_functions_that_can_be_written_as_text():
    arguments = {
        name
        for function in (vd.synthetic_bars, vd.build_market, vd.build_basket, vd.read_bars)
        for name in inspect.signature(function).parameters
    }
    assert arguments - set(FIELDS) == {"kind", "bars", "scalers", "name"}
    assert set(FIELDS) - arguments == {"shorten"}  # what happens before a training


def test_splits_scalers_and_processes_are_those_of_the_package():
    assert MarketConfig().splits == dict(DEFAULT_SPLITS)
    assert list(MarketConfig().splits) == list(DEFAULT_SPLITS)
    assert inspect.get_annotations(MarketConfig, eval_str=True)["scaler"].__args__ == SCALER_KINDS
    assert set(SYNTHETIC) == set(KINDS)
    named = {name for names in SYNTHETIC.values() for name in names}
    own = set(inspect.signature(vd.synthetic_bars).parameters) - {"kind", "timeframe", "symbols"}
    assert named == own
    assert not named & set(FOR_FILES)


def test_importing_the_configuration_loads_nothing_heavy():
    answer = subprocess.run(
        [sys.executable, "-c", "import sys, velodrome.runs.config.explain as e; e.help_text(); print(*sys.modules)"],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert not {"torch", "numba", "gymnasium", "polars", "sqlalchemy"} & set(answer.stdout.split())


# Markets


@pytest.mark.parametrize("source", KINDS)
def test_a_built_in_market_is_what_the_functions_make(source):
    config = load_run_config("smoke", [f"market.source={source}", "market.seed=3"])
    market = config.market.build()
    by_hand = vd.build_market(vd.synthetic_bars(source, 1_500, 3), windows=8, splits=dict(DEFAULT_SPLITS))
    assert market.content_hash == by_hand.content_hash
    assert market.optimum == by_hand.optimum


@pytest.mark.parametrize(
    ("settings", "arguments"),
    [
        (["market.source=ar1", "phi=-0.4", "drift=1e-4"], {"phi": -0.4, "drift": 1e-4}),
        (["market.source=ou", "reversion=0.2", "volatility=0.01"], {"reversion": 0.2, "volatility": 0.01}),
        (["market.source=gbm", "price=7", "market.start=2021-03-04"], {"price": 7.0, "start": "2021-03-04"}),
        (
            ["market.source=regimes", "persistence=0.9", "states=[[0.001, 0.01], [-0.001, 0.02]]"],
            {"persistence": 0.9, "states": ((0.001, 0.01), (-0.001, 0.02))},
        ),
        (["market.source=ar1", "symbols=[ON, NO]"], {"symbols": ("ON", "NO")}),
        (["market.source=ar1", "symbols=3", "timeframe=1h"], {"symbols": 3, "timeframe": "1h"}),
    ],
)
def test_parameters_of_a_process_reach_it(settings, arguments):
    config = load_run_config("smoke", settings)
    bars = config.market.bars()
    by_hand = vd.synthetic_bars(config.market.source, 1_500, **arguments)
    assert bars.symbols == by_hand.symbols
    for symbol in bars:
        assert np.array_equal(bars[symbol].close, by_hand[symbol].close)
        assert np.array_equal(bars[symbol].time, by_hand[symbol].time)


@pytest.fixture
def price_folder(tmp_path):
    folder = tmp_path / "prices"
    folder.mkdir()
    for symbol, seed in (("AAA", 1), ("BBB", 2)):
        series = vd.synthetic_bars("gbm", 900, seed, timeframe="1m", symbols=[symbol])[symbol]
        prices = {name: series.column(name) for name in ("open", "high", "low", "close", "volume")}
        frame = pl.DataFrame({"time": series.time.astype("datetime64[ns]"), **prices})
        frame.write_csv(folder / f"{symbol}.csv")
    return folder


def test_runs_sum_the_column_of_the_funding_in_coarser_bars(price_folder):
    for file in price_folder.iterdir():
        pl.read_csv(file).with_columns(rate=pl.lit(1e-4)).write_csv(file)
    words = [f"market.source={price_folder}", "market.windows=4", "market.timeframe=3m", "check_leaks=false"]
    config = load_run_config(None, [*words, "params.funding_column=rate"])
    assert config.market.sums == ("rate",)
    assert config.market.build().columns["rate"] == pytest.approx(3e-4)
    bars = vd.read_bars(price_folder, timeframe="3m", sums=["rate"])
    assert bars["AAA"].extra["rate"] == pytest.approx(3e-4)
    assert (bars["AAA"].lasts, vd.read_bars(price_folder, timeframe="3m")["AAA"].lasts) == (set(), {"rate"})
    assert load_run_config(None, words).market.sums is None
    assert load_run_config(None, words).hash != config.hash


def test_a_market_of_files_takes_symbols_timeframe_windows_and_splits(price_folder):
    config = load_run_config(
        None,
        [
            f"source={price_folder}", "symbols=BBB", "timeframe=5m", "windows={5m: 4, 1m: 6}", "features=log_return",
            "market.splits={train: 0.8, late: 0.2}", "embargo=3", "scaler=robust", "evaluation.split=late",
            "evaluation.final_split=null",
        ],
    )  # fmt: skip
    market = config.market.build()
    assert market.symbols == ("BBB",)
    assert market.timeframe == "5m"
    assert market.window_names == ("5m", "1m")
    assert set(market.splits) == {"train", "late"}
    assert [scaler.kind for scaler in market.scalers] == ["robust", "robust"]


def test_splits_by_date_are_texts_whether_from_yaml_or_toml(price_folder, tmp_path):
    yaml = tmp_path / "a.yaml"
    yaml.write_text(
        f"market:\n  source: {price_folder}\n  splits:\n    train: [null, 2020-01-01T08:00]\n"
        "    validation: [2020-01-01T08:00, 2020-01-01T12:00]\n    test: [2020-01-01T12:00, null]\n"
    )
    toml = tmp_path / "a.toml"
    toml.write_text(
        f'[market]\nsource = "{price_folder}"\n[market.splits]\ntrain = ["2020-01-01", 2020-01-01T08:00:00]\n'
        "validation = [2020-01-01T08:00:00, 2020-01-01T12:00:00]\ntest = [2020-01-01T12:00:00, 2020-01-02]\n"
    )
    first, second = load_run_config(yaml), load_run_config(toml)
    json.dumps([first.content(), second.content()])
    assert first.market.build().splits == second.market.build().splits


def test_a_source_that_is_nowhere_is_told_with_the_nearest_process():
    config = load_run_config(None, ["market.source=ar2"])
    with pytest.raises(ConfigError, match=r"market.source = 'ar2' is neither a file or folder .* mean 'ar1'\?"):
        config.market.build()


def test_a_number_of_symbols_of_files_is_refused():
    with pytest.raises(ConfigError, match=r"market.symbols = 3: a number is for a built-in process"):
        load_run_config(None, ["market.source=prices/", "market.symbols=3"])


# Baskets


def test_a_portfolio_takes_a_basket_and_trading_a_market(price_folder):
    settings = [f"source={price_folder}", "windows=4", "features=[log_return, rank:log_return]", "embargo=2"]
    config = load_run_config(None, ["env=portfolio", *settings, "min_instruments=2"])
    basket = build_market(config)
    assert isinstance(basket, vd.Basket)
    by_hand = vd.build_basket(
        price_folder, windows=4, features=["log_return", "rank:log_return"], embargo=2, min_instruments=2
    )
    assert basket.content_hash == by_hand.content_hash
    market = build_market(load_run_config(None, [*settings[:2], "session=6h"]))
    assert isinstance(market, vd.Market)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["env=portfolio", "market.session=6h"], r"market.session is set .* env is portfolio, .* one grid"),
        (["market.min_instruments=2"], r"market.min_instruments is set .* env is trading, .* each instrument"),
        (["env=portfolio", "market.source=ar1", "market.common=0.2"], "market.common .* process ar1"),
        (["market.source=factors", "market.common=0.9"], r"market.common = 0.9: not legal"),
    ],
)
def test_what_the_other_kind_of_data_has_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        load_run_config(None, settings)


def test_files_in_place_of_a_preset_s_process_bring_their_own_instruments_and_bars(price_folder):
    config = load_run_config("demo_portfolio", [f"market.source={price_folder}"])
    assert (config.market.symbols, config.market.timeframe) == (None, None)
    assert config.market.features == ("log_return",)
    assert build_market(config).timeframe == "1m"
    named = load_run_config("portfolio", [f"market.source={price_folder}", "market.timeframe=5m"])
    assert named.market.timeframe == "5m"
    other = load_run_config("portfolio", ["market.source=gbm"])
    assert (other.market.symbols, other.market.timeframe) == (7, "1d")
    assert load_run_config("intraday", [f"market.source={price_folder}"]).market.timeframe == "5m"


def test_one_instrument_is_no_portfolio(price_folder):
    with pytest.raises(ConfigError, match=r"market has 1 instrument \(ar1_0\).*market.symbols"):
        build_market(load_run_config({}, ["env=portfolio"]))
    with pytest.raises(ConfigError, match=r"market has 1 instrument \(AAA\).*market.source"):
        build_market(load_run_config(None, ["env=portfolio", f"source={price_folder / 'AAA.csv'}"]))


def test_the_optimum_of_a_portfolio_is_that_of_factors_alone():
    build = {"windows": 4, "check_leaks": False}
    factors = vd.synthetic_bars("factors", 600, symbols=3)
    assert vd.build_basket(factors, **build).optimum == factors.optimum > 0
    assert vd.build_basket(factors, timeframe="5m", **build).optimum is None
    assert vd.build_market(factors, **build).optimum is None
    assert vd.build_basket(vd.synthetic_bars("ar1", 600, symbols=3), **build).optimum is None


# The whole


def test_the_default_run_trades_a_built_in_ar1_market():
    config = load_run_config()
    assert (config.env, config.algorithm, config.market.source, config.market.length) == (
        "trading",
        "ppo",
        "ar1",
        100_000,
    )
    assert config.market.build().optimum > 0


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_is_complete_and_its_environment_takes_its_parameters(name):
    config = load_run_config(name)
    if price_data(config.env) and name != "gpu":
        market = build_market(config)
        envs = vd.make_vec(config.env, num_envs=2, market=market, split="train", backend="python", **config.params)
        envs.reset(seed=config.seed)
    assert config.steps >= config.num_envs * config.learner.rollout_length


def test_the_presets_are_those_that_the_docs_promise():
    own_data = {"trading", "portfolio", "dqn", "sac", "torchtrade", "intraday", "gpu", "portfolio_gpu", "portfolio_sac"}
    demos = {"demo", "demo_portfolio", "demo_dqn", "demo_sac", "demo_portfolio_sac", "ou", "smoke"}
    assert set(preset_names()) == own_data | demos | {"cartpole", "gymnasium", "cage2", "cage2_reduced", "cage2_gpu"}
    assert preset_names()[0] == "trading"
    features = ("log_return", "rsi_14", "ema_10", "ema_20", "volatility_20", "volume_z_50", "minute_of_day")
    assert load_run_config("intraday").market.features == features
    for name in ("gpu", "portfolio_gpu", "cage2_gpu"):
        assert load_run_config(name).device == "cuda"
    # With files of one's own it is taught, and its critic learns first, which one trunk for both would not allow.
    gpu = load_run_config("gpu", {"market.source": "prices.csv"})
    assert (gpu.market.shorten, gpu.teacher.policy, gpu.ppo.precision) == (True, "forecast", "bfloat16")
    assert load_run_config("cage2_gpu").evaluation.official


OWN = "market.source=prices/"


@pytest.mark.parametrize(
    ("source", "words", "demo", "own"),
    [
        (None, [], "demo", "trading"),
        ("trading", [], "demo", "trading"),
        ("portfolio", [], "demo_portfolio", "portfolio"),
        (None, ["env=portfolio"], "demo_portfolio", "portfolio"),
        ("dqn", [], "demo_dqn", "dqn"),
        ("sac", [], "demo_sac", "sac"),
        ("portfolio_sac", [], "demo_portfolio_sac", "portfolio_sac"),
        ({"preset": "trading"}, [], "demo", "trading"),
    ],
)
def test_the_toy_market_s_settings_stay_with_the_toy_market(source, words, demo, own):
    assert load_run_config(source, words) == load_run_config(demo)
    config = load_run_config(source, [*words, OWN])
    assert config.learner.gamma > load_run_config(demo).learner.gamma
    assert {"fee", "buy_fee"} & set(config.params)  # trading is never free by default
    assert config.algorithm != "ppo" or config.ppo.normalise_rewards
    _, origins = load_with_origins(source, [*words, OWN])
    assert origins[f"{config.algorithm}.gamma"] == f"preset {own}"
    assert origins["market.source"] == "given"
    assert f"{config.algorithm}.max_gradient_norm" not in origins


def test_a_market_of_the_caller_s_own_is_no_toy():
    assert load_run_config(own_data=True).ppo == load_run_config(None, [OWN]).ppo != load_run_config("demo").ppo


@pytest.mark.parametrize("given", [[], [OWN]])
def test_preset_gpu_does_not_validate_after_every_rollout(given):
    """Nor with files of one's own, for which it begins as preset trading, whose rollouts are shorter."""
    config = load_run_config("gpu", given)
    assert config.evaluation.every_steps == "auto"
    assert config.steps // config.evaluation.fewest > 10 * config.num_envs * config.ppo.rollout_length


@pytest.mark.parametrize("name", ["torchtrade", "intraday"])
def test_presets_of_rules_have_the_learner_of_the_data(name):
    assert load_run_config(name, [OWN]).ppo == load_run_config("trading", [OWN]).ppo
    assert load_run_config(name).ppo == load_run_config("demo").ppo


def test_a_set_of_parameters_replaces_what_a_preset_chose_of_them():
    config = load_run_config("trading", [OWN, "params.preset=intraday"])
    assert config.params == {"preset": "intraday", "episode_length": 128}
    assert load_run_config("intraday", [OWN]).params == {"preset": "intraday", "episode_length": 288}
    own_fee = load_run_config("trading", [OWN, "params.preset=intraday", "fee=0.002"])
    assert own_fee.params["fee"] == 0.002


@pytest.mark.parametrize("preset", TRADING_PRESETS)
def test_a_preset_of_parameters_means_what_the_environment_means(preset):
    config = load_run_config({"params": {"preset": preset, "fee": 0.0005, "levels": [0, 1]}})
    expected = trading_config(preset, fee=0.0005, levels=(0.0, 1.0)).model_dump(mode="json")
    assert resolved_parameters("trading", config.params) == expected
    assert config.params == {"preset": preset, "fee": 0.0005, "levels": [0.0, 1.0]}


def test_the_device_is_the_one_that_this_machine_has(monkeypatch):
    from velodrome.vector import cuda

    monkeypatch.setattr(cuda, "unavailable_reason", lambda *device: "there is none")
    assert load_run_config(None, ["device=auto"]).usable_device() == "cpu"
    assert load_run_config(None, ["device=cpu"]).usable_device() == "cpu"
    with pytest.raises(BackendError, match="device = 'cuda' cannot be used: there is none"):
        load_run_config(None, ["device=cuda"]).usable_device()
    monkeypatch.setattr(cuda, "unavailable_reason", lambda *device: None)
    assert load_run_config(None, ["device=auto"]).usable_device() == "cuda"


# Content and hash


@pytest.mark.parametrize("name", preset_names())
def test_content_is_plain_and_reads_back(name):
    config = load_run_config(name)
    content = json.loads(json.dumps(config.content()))
    assert content == config.content()
    assert RunConfig(**content) == config
    assert load_run_config(config) == config
    other = {"ppo", "dqn"} - {config.algorithm}
    assert not other & set(content)


def test_the_hash_is_the_same_in_every_process():
    config = RunConfig(seed=3, env="template", params={"momentum": 0.9}, network={"hidden": [8]})
    answer = subprocess.run(
        [sys.executable, "-c",
         "from velodrome.runs.config.run_config import RunConfig\n"
         "print(RunConfig(network={'hidden': (8,)}, params={'momentum': 0.9}, env='template', seed=3).hash)"],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert answer.stdout.strip() == config.hash
    assert len(config.hash) == 12


def test_the_hash_ignores_what_a_run_does_not_learn_from():
    config = load_run_config("smoke")
    for setting in ("name=other", "logging.tensorboard=true", "checkpoint.keep=9", "params.fee=0.0"):
        assert load_run_config(config, [setting]).hash == config.hash, setting
    changes = ("seed=1", "params.fee=0.001", "ppo.clip=0.1", "market.seed=1", "steps=4096", "device=auto",
               "market.splits={test: 0.15, validation: 0.15, train: 0.7}", "algorithm=dqn")  # fmt: skip
    hashes = {load_run_config(config, [setting]).hash for setting in changes}
    assert len(hashes | {config.hash}) == len(changes) + 1


@given(st.permutations(["seed", "num_envs", "steps", "ppo", "params"]))
def test_the_hash_does_not_depend_on_the_order_of_settings(order):
    values = {"seed": 4, "num_envs": 8, "steps": 1024, "ppo": {"clip": 0.1}, "params": {"fee": 0.001, "leverage": 2.0}}
    expected = RunConfig(**values).hash
    assert RunConfig(**{name: values[name] for name in order}).hash == expected


def test_a_model_made_by_hand_refuses_what_would_have_no_effect():
    with pytest.raises(ValueError, match=r"ppo.clip is set and would have no effect: algorithm is dqn"):
        RunConfig(algorithm="dqn", ppo={"clip": 0.1})
    with pytest.raises(ValueError, match=r"market.windows is set and would have no effect: env is CartPole-v1"):
        RunConfig(env="CartPole-v1", market={"windows": 4})
    # A full dump has idle sections at their defaults.
    assert RunConfig(**RunConfig(algorithm="dqn").model_dump()) == RunConfig(algorithm="dqn")


def test_a_configuration_is_frozen():
    with pytest.raises(ValueError, match="frozen"):
        load_run_config().steps = 3


def test_a_number_of_environments_that_was_measured_can_be_read_again():
    config = load_run_config("smoke", ["num_envs=auto", "vector.max_envs=64"]).with_num_envs(32)
    assert load_run_config(config.content()).num_envs == 32
