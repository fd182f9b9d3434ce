"""Explaining a configuration: every field is listed, YAML loads again, the page of the docs is up to date."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console

from velodrome.envs.trading.config import TradingConfig
from velodrome.errors import ConfigError
from velodrome.runs.config import explain
from velodrome.runs.config.explain import help_text, markdown_table, section_lines, to_yaml, value_text, with_tables
from velodrome.runs.config.files import load_run_config, parse_value, parse_yaml, preset_names
from velodrome.runs.config.messages import all_fields
from velodrome.runs.config.run_config import SECTIONS, RunConfig

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"
EVERY_KEY = [*(name for name in RunConfig.model_fields if name not in {*SECTIONS, "params"}), *all_fields("trading")]
for unread in ("dqn.engine", "sac.engine", "sac.compile", "sac.per_bar"):  # inherited, and not read by them
    EVERY_KEY.remove(unread)


def rendered(section: str | None = None, **options) -> str:
    console = Console(width=200, file=io.StringIO())
    with console.capture() as captured:
        console.print(explain.explain(section, **options))
    return captured.get()


# Completeness


def test_every_field_is_explained_everywhere():
    table, text, markdown = rendered(), help_text(), markdown_table()
    assert len(EVERY_KEY) > 100
    for key in EVERY_KEY:
        assert f" {key} " in table, key
        assert f"  {key}=" in text, key
        assert f"| `{key}` |" in markdown, key


def test_every_field_has_a_meaning_and_says_what_is_legal():
    for lines in section_lines().values():
        for line in lines:
            assert line.meaning, line.key
            assert line.legal, line.key
            assert "any value" not in line.legal, line.key


def test_one_section_or_one_field_can_be_asked_for():
    ppo = rendered("ppo")
    assert "ppo.gae_lambda" in ppo
    assert "dqn" not in ppo
    assert "ppo.clip " in rendered("ppo.clip")
    assert "ppo.gamma" not in rendered("ppo.clip")
    assert "steps" in rendered("run")
    assert "params.momentum" in rendered("params", env="template")
    assert "params.fee" not in help_text("params", env="CartPole-v1")
    with pytest.raises(ConfigError, match=r"no section or field 'pppo'. Did you mean 'ppo'\? Sections: run, vector"):
        explain.explain("pppo")
    with pytest.raises(ConfigError, match=r"Did you mean 'ppo.clip'\?"):
        help_text("ppo.clipp")


@pytest.mark.parametrize(
    ("key", "legal"),
    [
        ("ppo.gamma", "number 0 … 1"),
        ("ppo.clip", "number > 0 and ≤ 10"),
        ("ppo.epochs", "whole number 1 … 1,000"),
        ("ppo.target_kl", "number > 0, or null"),
        ("ppo.schedule", "one of constant, linear, cosine"),
        ("ppo.compile", "true or false"),
        ("network.hidden", "list of whole numbers"),
        ("params.fee", "number 0 … 0.5, or a range [low, high]; unit: fraction of notional"),
        ("params.episode_length", "whole number, or [whole number, whole number], or null"),
        ("evaluation.split", "text, or null"),
        ("params.preset", "one of torchtrade, intraday, or null"),
    ],
)
def test_what_is_legal_is_said_in_words(key, legal):
    found = {line.key: line.legal for lines in section_lines().values() for line in lines}
    assert found[key] == legal


# YAML


@pytest.mark.parametrize("name", preset_names())
@pytest.mark.parametrize("comments", [True, False])
def test_a_preset_loads_again_from_its_yaml(name, comments, tmp_path):
    config = load_run_config(name)
    path = tmp_path / "run.yaml"
    path.write_text(to_yaml(config, comments), encoding="utf-8")
    again = load_run_config(path)
    assert again == config
    assert again.hash == config.hash
    assert to_yaml(again, comments) == to_yaml(config, comments)


@pytest.mark.parametrize("name", preset_names())
def test_other_readers_of_yaml_see_the_same(name):
    config = load_run_config(name)
    assert yaml.safe_load(to_yaml(config, comments=False)) == config.content()


def test_parameters_that_were_not_set_stand_as_comments_with_their_values():
    text = to_yaml(load_run_config("intraday"))
    assert "\n  preset: intraday\n" in text
    assert "\n  #fee: 0.001\n" in text
    assert all(f"\n  #{name}: " in text or f"\n  {name}: " in text for name in TradingConfig.model_fields)
    uncommented = text.replace("\n  #fee: 0.001\n", "\n  fee: 0.002\n").replace("\n  #levels:", "\n  levels:")
    config = load_run_config(parse_yaml(uncommented))
    assert config.params["fee"] == 0.002
    assert config.params["levels"] == [-1.0, 0.0, 1.0]


def test_yaml_has_no_key_without_effect():
    assert "dqn:" not in to_yaml(load_run_config())
    assert "phi:" not in to_yaml(load_run_config("ou"))
    assert "market:" not in to_yaml(load_run_config("cartpole"))


numbers = st.floats(1e-9, 1.0)
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
odd = ["1e3", "on", "null", "no", "2020-01-01", "1:30", "~", "", "0x1F", "#", "a: b", "<<", "- a", "\xa0", "a\n"]
words = st.one_of(names, st.sampled_from(odd))
optional_words, optional_numbers = st.one_of(st.none(), words), st.one_of(st.none(), numbers)
scalars = st.one_of(st.none(), st.booleans(), st.integers(), words, st.floats(allow_nan=False))
timeframes = st.sampled_from(["1m", "5m", "1h", "1d"])
windows = st.one_of(st.integers(1, 500), st.dictionaries(timeframes, st.integers(1, 500)))
settings_of = st.fixed_dictionaries(
    {},
    optional={
        "name": st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True),
        "seed": st.integers(0, 2**63 - 1),
        "steps": st.integers(10**6, 10**12),
        "market": st.fixed_dictionaries(
            {"source": st.just("ar1")},
            optional={
                "phi": st.floats(-0.99, 0.99), "volatility": numbers, "windows": windows,
                "symbols": st.one_of(st.none(), st.integers(1, 9), st.lists(words, min_size=1, max_size=3)),
                "features": st.one_of(st.none(), st.lists(names), st.dictionaries(timeframes, st.lists(names))),
                "splits": st.sampled_from([
                    {"train": 0.5, "validation": 0.25, "test": 0.25},
                    {"train": [None, "2020-01-05"], "validation": ["2020-01-05", "2020-02"], "test": ["2020-02", None]},
                ]),
                "clip": st.one_of(st.none(), st.floats(0.0, exclude_min=True, allow_infinity=True)),
            },
        ),
        "params": st.fixed_dictionaries(
            {},
            optional={
                "preset": st.sampled_from(["torchtrade", "intraday"]), "fee": st.floats(0.0, 0.5),
                "slippage": st.floats(0.0, 0.5).map(lambda low: [low / 2, low]),
                "episode_length": st.one_of(st.none(), st.integers(1, 10**6), st.just([5, 9])),
                "levels": st.lists(st.floats(-1.0, 1.0), min_size=1, max_size=4, unique=True),
                "reward": st.sampled_from(["return", "drawdown"]), "funding_column": optional_words,
            },
        ),
        "network": st.fixed_dictionaries({"hidden": st.lists(st.integers(1, 999), min_size=1, max_size=3)}),
        "ppo": st.fixed_dictionaries({}, optional={"learning_rate": numbers, "value_clip": optional_numbers}),
        "logging": st.fixed_dictionaries({}, optional={"folder": words.filter(bool), "store": optional_words}),
    },
)  # fmt: skip


@settings(max_examples=30)
@given(settings_of, st.booleans())
def test_any_configuration_loads_again_from_its_yaml(content, comments):
    config = load_run_config(content)
    again = load_run_config(parse_yaml(to_yaml(config, comments)))
    assert again == config
    assert again.content() == config.content()
    assert again.hash == config.hash


@settings(max_examples=30)
@example({"limit": float("inf")})
@given(st.dictionaries(words, st.one_of(scalars, st.lists(scalars), st.dictionaries(words, scalars)), max_size=3))
def test_parameters_of_any_environment_load_again(params):
    config = load_run_config("cartpole", {"params": params})
    assert load_run_config(parse_yaml(to_yaml(config))) == config


@given(st.one_of(words, st.floats(allow_nan=False), st.integers(), st.lists(words), st.dictionaries(words, words)))
def test_a_value_is_read_back_from_its_text(value):
    text = value_text(value)
    assert "\n" not in text
    assert parse_value(text, "a value") == value
    assert type(parse_value(text, "a value")) is type(value)
    assert yaml.safe_load(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001), ("1E5", 1e5), ("-1.5e+3", -1500.0), (".5", 0.5), ("5.", 5.0), ("1_000", 1000), ("+3", 3),
        ("0x1f", 31), ("0", 0), (".inf", float("inf")), ("-.inf", float("-inf")), ("true", True), ("False", False),
        ("null", None), ("", None), ("~", None), ("on", "on"), ("No", "No"), ("y", "y"), ("2020-01-31", "2020-01-31"),
        ("1:30", "1:30"), ("007", "007"), ("'1'", "1"), ("none", "none"), ("e5", "e5"), ("1e", "1e"),
        ("[1e3, on]", [1e3, "on"]), ("005930", "005930"), ("=", "="),
    ],
)  # fmt: skip
def test_yaml_is_read_by_the_rules_of_its_version_1_2(text, value):
    assert parse_value(text, "a value") == value
    assert type(parse_value(text, "a value")) is type(value)


# The page of the docs


def test_the_page_has_the_tables_of_today():
    page = PAGE.read_text(encoding="utf-8")
    assert with_tables(page) == page, "run: python -m velodrome.runs.config.explain docs/configuration.md"


def test_writing_the_tables_keeps_the_rest_of_the_page(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{explain.TABLES_BEGIN}\nof yesterday\n{explain.TABLES_END}\nafter\n", encoding="utf-8")
    explain.main([str(page)])
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "of yesterday" not in text
    assert "`ppo.clip`" in text
    with pytest.raises(ConfigError, match="no place for the tables"):
        with_tables("nothing")
