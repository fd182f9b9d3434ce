"""A study: search for better settings, make sure of the best with fresh seeds, and look at what decided it.

From the command line: `velodrome tune demo --trials 100 --study first`, `velodrome studies show first`.
"""

from __future__ import annotations

import argparse

from rich.console import Console

import velodrome as vd
from velodrome.runs.config.files import read_overrides
from velodrome.tune.listing import show_view


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", default="runs")
    parser.add_argument("--config", default="demo")
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each trial, and fresh ones of the best")
    parser.add_argument("settings", nargs="*", help="key=value: what all trials have, and is not searched")
    chosen = parser.parse_args()
    study = vd.tune(
        chosen.config,
        chosen.trials,
        study="example",  # the same call again continues it, and a second process joins it
        search=["ppo.learning_rate=1e-5:1e-2:log"],  # in place of the range that is declared beside the field
        settings={"seeds": chosen.seeds, "confirm_seeds": chosen.seeds, "test": False},
        folder=chosen.folder,
        mode="quiet",
        **read_overrides(chosen.settings),
    )
    Console().print(show_view(study))
    print("to train with them:", " ".join(f"{key}={value}" for key, value in study.config.items()))


if __name__ == "__main__":
    main()
