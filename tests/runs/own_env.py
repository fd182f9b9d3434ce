"""Environments that nobody has registered, for tests of env=module:Class."""

from __future__ import annotations

import gymnasium
import numpy as np


class MyEnv(gymnasium.Env):
    """Says which of two actions is right."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length=10):
        self.length = length

    def _show(self):
        self.shown = self.np_random.uniform(-1.0, 1.0, 3).astype(np.float32)
        return self.shown

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0
        return self._show(), {}

    def step(self, action):
        reward = float((self.shown[0] > 0) == action)
        self.at += 1
        return self._show(), reward, False, self.at >= self.length, {}


class Picture(MyEnv):
    """The same as a picture of bytes."""

    observation_space = gymnasium.spaces.Box(0, 255, (2, 3, 1), np.uint8)

    def _show(self):
        self.shown = self.np_random.uniform(-1.0, 1.0, 3).astype(np.float32)
        return np.tile(127.5 * (self.shown + 1.0), 2).astype(np.uint8).reshape(2, 3, 1)


def make_my_env(length=5):
    """Return one."""
    return MyEnv(length)


def needs_data(data):
    """Never made: a run cannot give it a frame."""


class NoEnv:
    """Nothing that Gymnasium knows."""
