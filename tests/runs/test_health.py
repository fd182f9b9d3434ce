"""Curves of training and validation that part, and those that only seem to."""

from __future__ import annotations

import html
import json

import numpy as np
import polars as pl
import pytest

import velodrome as vd
from tests.runs.small_runs import one_thread, small_run  # noqa: F401
from velodrome.runs.health import Series, overfitting, overfitting_of
from velodrome.runs.metrics import Entry
from velodrome.runs.report.listing import show_content
from velodrome.runs.store.sinks import JsonLinesSink
from velodrome.runs.store.store import open_store


def learning_curve(count: int, top: float) -> np.ndarray:
    return top * (1.0 - np.exp(-5.0 * np.arange(count) / count))


def curves(validation: np.ndarray, training: np.ndarray) -> tuple[Series, Series]:
    """The validations at their steps, and ten times as many returns of training before them."""
    return (
        Series(np.arange(1, len(training) + 1) * 1000, training),
        Series(np.arange(1, len(validation) + 1) * 10_000, validation),
    )


RISING = learning_curve(300, 0.81)
PARTED = np.concatenate([np.linspace(0.05, 0.18, 7), np.linspace(0.17, -0.37, 23)])


def test_a_validation_that_falls_while_training_rises_is_told_with_its_numbers():
    found = overfitting(*curves(PARTED, RISING))
    assert found is not None
    assert 50_000 <= found.step <= 110_000
    assert found.last_step == 300_000
    told = found.sentence("validation", account=True)
    assert told.startswith("overfitting: from step ")
    assert "to 300,000 the return in training went from +" in told
    assert "while that on validation fell from +" in told
    assert "−" in told.rpartition(" to ")[2]


@pytest.mark.parametrize(
    ("validation", "training"),
    [
        (learning_curve(30, 0.2), RISING),
        (PARTED, -RISING),  # training fell, too: it learnt nothing, rather than too much
        (np.linspace(0.18, -0.37, 4), RISING),
        (learning_curve(30, 0.2) - 0.0005 * np.arange(30), RISING),  # less than a tenth of the best is lost
        (PARTED, RISING[:3]),
    ],
    ids=["it learns", "both fall", "few validations", "a small fall", "no training returns"],
)
def test_other_courses_are_no_overfitting(validation, training):
    assert overfitting(*curves(validation, training)) is None


@pytest.mark.parametrize("count", [5, 12, 31])
def test_noise_alone_is_seldom_taken_for_it(count):
    rng = np.random.default_rng(count)
    training = RISING + 0.05 * rng.normal(size=300)
    found = [overfitting(*curves(0.05 * rng.normal(size=count), training)) for _ in range(300)]
    assert sum(one is not None for one in found) / 300 < 0.05


def of_seed(seed: int, validation: np.ndarray, training: np.ndarray) -> pl.DataFrame:
    """The metrics of one seed of a group, as many returns of training as validations."""
    steps = pl.Series("step", 1000 * np.arange(1, len(validation) + 1))
    named = {"episode/return": training, "evaluation/validation/return": validation}
    return pl.concat(
        pl.DataFrame({"step": steps, "name": [name] * len(steps), "value": values, "seed": [seed] * len(steps)})
        for name, values in named.items()
    )


def test_beside_validation_stands_the_return_of_equity_where_there_is_an_account():
    """A sum of rewards of another kind, such as differential_sharpe's, may rise while the account falls."""
    rewards, falling = of_seed(0, PARTED, 900.0 + learning_curve(30, 0.81)), -learning_curve(30, 0.81)
    equity = rewards.filter(rewards["name"] == "episode/return").with_columns(
        name=pl.lit("episode/equity_return"), value=pl.Series(falling)
    )
    assert overfitting_of(rewards, "validation") is not None
    assert overfitting_of(pl.concat([rewards, equity]), "validation") is None


def test_a_good_seed_that_ends_early_is_no_fall_of_the_group():
    rng, rising = np.random.default_rng(0), 0.05 + 1e-4 * np.arange(100)
    noise = 0.005 * rng.normal(size=(2, 100))
    ended, longer = of_seed(0, 0.2 + noise[0, :50], rising[:50]), of_seed(1, noise[1], rising)
    assert overfitting_of(pl.concat([ended, longer]), "validation") is None


def test_a_fall_of_all_seeds_is_told_as_far_as_all_of_them_went():
    long, short = of_seed(0, PARTED, RISING[::10]), of_seed(1, PARTED[:25], RISING[:250:10])
    found = overfitting_of(pl.concat([long, short]), "validation")
    assert found is not None
    assert found.last_step == 25_000


def test_a_result_says_it_in_a_sentence(tmp_path):
    run = small_run(tmp_path)
    steps = np.linspace(64, 640, 30).astype(int)
    entries = [
        Entry(step, 0.0, {"evaluation/validation/return": value})
        for step, value in zip(steps.tolist(), PARTED, strict=True)
    ]
    entries += [Entry(2 * k, 0.0, {"episode/return": float(value)}) for k, value in enumerate(RISING, 20)]
    entries.append(Entry(640, 0.0, {"evaluation/validation/max_drawdown": 0.4}))
    sink = JsonLinesSink(run.folder.metrics_path, resume_step=0)
    sink.write(sorted(entries, key=lambda entry: entry.step))
    sink.close()
    best, latest = vd.evaluate(run, report=False), vd.evaluate(run, checkpoint="latest")
    with open_store(tmp_path) as store:
        shown = show_content(store, store.run(run.folder.id))["overfitting"]
    (told,) = (warning for warning in latest.warnings if warning.startswith("overfitting"))
    assert shown in told
    assert told.endswith("this checkpoint, of step 640, is from after that")
    assert told[1:] in html.unescape(run.path.joinpath(f"report-{latest.file_name}.html").read_text(encoding="utf-8"))
    assert json.loads(latest.to_json())["information"]["overfitting"]["last_step"] == 640
    assert any(warning.startswith("overfitting") for warning in best.warnings)
