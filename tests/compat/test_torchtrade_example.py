"""TorchTrade's own training example, whole, with the imports of its environments changed and nothing else.

It is not in the package that pip installs: TORCHTRADE_EXAMPLES names examples/online_rl of a checkout of TorchTrade,
and `pip install 'velodrome[torchtrade]' hydra-core scikit-learn tqdm` what it imports.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import velodrome as vd

EXAMPLES = Path(os.environ.get("TORCHTRADE_EXAMPLES", "nowhere"))
THEIRS = re.compile(r"^from torchtrade\.envs(?:\.offline)? import", re.MULTILINE)
MANY = ("ppo_vectorized", "env.num_envs=16", "loss.mini_batch_size=160")
ONE = ("ppo", "env.train_envs=2", "loss.mini_batch_size=160")  # each in a process of ParallelEnv
WORDS = (
    *("env.data_path=data", "env.test_split_start=2020-02-01", "model.hidden_size=32", "optim.lr=1e-4"),
    *("collector.frames_per_batch=320", "collector.total_frames=640", "loss.ppo_epochs=1"),
    *("logger.test_interval=320", "logger.mode=offline", "hydra.job.chdir=False"),
)


@pytest.mark.slow
@pytest.mark.skipif(
    not (EXAMPLES / "ppo_vectorized").is_dir(), reason="TORCHTRADE_EXAMPLES names no checkout's examples"
)
@pytest.mark.parametrize("example", [MANY, ONE, (*ONE, "env=sequential_sltp")], ids=["many", "one", "brackets"])
def test_their_training_example_runs_with_the_import_changed(example, tmp_path):
    for name in ("torchtrade", "hydra", "sklearn", "datasets", "wandb"):
        pytest.importorskip(name)
    script, *words = example
    folder = shutil.copytree(EXAMPLES / script, tmp_path / "example")
    helpers = folder / "utils.py"
    changed, count = THEIRS.subn("from velodrome.compat.torchtrade import", helpers.read_text(encoding="utf-8"))
    assert count == {"ppo_vectorized": 2, "ppo": 1}[script]
    helpers.write_text(changed, encoding="utf-8")
    series = next(iter(vd.synthetic_bars("gbm", 1_000, 0, timeframe="1h", volatility=0.01).series.values()))
    columns = {name: getattr(series, name) for name in ("open", "high", "low", "close", "volume")}
    (folder / "data").mkdir()
    frame = pl.DataFrame({"timestamp": series.time.astype("datetime64[ns]"), **columns})
    frame.write_csv(folder / "data" / "bars.csv")
    told = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "cache"), "MPLBACKEND": "Agg", "WANDB_SILENT": "true"}
    command = [sys.executable, "train.py", *words, *WORDS]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **told}, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert list(folder.rglob("*_policy_*.pth")), done.stdout[-2000:]
    assert list(folder.rglob("*.wandb"))
