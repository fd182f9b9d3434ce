"""What replays of recordings share: reading one, and playing its episodes side by side."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from velodrome.bars.files import check_growth
from velodrome.errors import DataError
from velodrome.outside.files import UNFIT
from velodrome.vector.native import NativeVectorEnv


class Script(NamedTuple):
    """What was recorded of episodes to be played again; the steps of one episode come after those of another."""

    actions: NDArray  # [steps, …]
    offsets: NDArray  # [episodes + 1] where each begins
    shown_episode: NDArray  # [N] which observations are asked for
    shown_step: NDArray  # [N]; 0 is the reset


class Played(NamedTuple):
    """One step of all episodes."""

    running: NDArray[np.bool_]  # the episodes that had not ended before it
    observations: NDArray[np.float32]
    rewards: NDArray[np.float32]
    exact_rewards: NDArray[np.float64]  # as the rule computes them, before they leave as float32
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]


def read_arrays(path: Path) -> dict[str, NDArray]:
    """Return the arrays of a recording by name; a file that is none, or grows beyond all recordings, is refused."""
    try:
        with zipfile.ZipFile(path) as archive:
            check_growth(path, sum(entry.file_size for entry in archive.infolist()), path.stat().st_size)
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    except DataError:
        raise
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, *UNFIT) as error:
        raise DataError(f"{path}: not a recording that can be read ({error!r}). Record it again.") from error


def play_episodes(
    envs: NativeVectorEnv, script: Script, observations: NDArray, keep: Callable[[Played], dict[str, NDArray]]
) -> tuple[dict[str, NDArray], NDArray[np.float32]]:
    """Play an episode in each environment, after a reset that returned `observations`.

    Return what `keep` makes of every step, in the order of the script, and the observations that are to be shown.
    `keep` returns arrays with an entry for each running episode.
    """
    lengths = np.diff(script.offsets)
    shown = np.zeros((len(script.shown_step), observations.shape[1]), np.float32)
    reward_sum = envs.column("reward_sum")
    rows, kept = [], []
    for step in range(int(lengths.max()) + 1):
        if step > 0:
            running = step <= lengths
            rows.append(script.offsets[:-1][running] + step - 1)
            actions = np.zeros((len(lengths), *script.actions.shape[1:]), script.actions.dtype)
            actions[running] = script.actions[rows[-1]]
            observations, rewards, terminated, truncated, _ = envs.step(actions)
            reward_before, reward_sum = reward_sum, envs.column("reward_sum")
            exact = reward_sum - reward_before
            kept.append(keep(Played(running, observations, rewards, exact, terminated, truncated)))
        now = script.shown_step == step
        shown[now] = observations[script.shown_episode[now]]
    order = np.argsort(np.concatenate(rows))
    return {name: np.concatenate([arrays[name] for arrays in kept])[order] for name in kept[0]}, shown
