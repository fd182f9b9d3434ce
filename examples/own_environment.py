"""Any Gymnasium environment, many at once: let a measurement choose the backend, watch it, and survive its crashes.

python examples/own_environment.py --num-envs 16 --steps 200
"""

from __future__ import annotations

import argparse

import gymnasium
import numpy as np

import velodrome as vd


class Thermostat(gymnasium.Env):
    """Keep a room at 20 degrees. Now and then, as environments do, it crashes."""

    def __init__(self, crash: float = 0.0) -> None:
        self.observation_space = gymnasium.spaces.Box(-50.0, 50.0, (1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)  # heating off, on
        self.crash = crash  # probability in a step

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.temperature, self.minutes = float(self.np_random.uniform(5.0, 35.0)), 0
        return np.array([self.temperature - 20.0], np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        if self.np_random.random() < self.crash:
            raise RuntimeError("the sensor does not answer")
        self.minutes += 1
        self.temperature += 0.8 * int(action) - 0.3 + float(self.np_random.normal(0.0, 0.1))
        error = self.temperature - 20.0
        return np.array([error], np.float32), -abs(error), False, self.minutes >= 60, {"degrees": self.temperature}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-envs", type=int, default=16, help="environments at once")
    parser.add_argument("--steps", type=int, default=500, help="steps of each")
    chosen = parser.parse_args()

    print("What a measurement recommends for it here:")
    print(vd.recommend(Thermostat, num_envs=chosen.num_envs).sentence())

    # Two worker processes; an environment that crashes is replaced and its episode cut off.
    envs = vd.VecMonitor(
        vd.make_vec(Thermostat, chosen.num_envs, backend="process", workers=2, on_fault="restart", max_restarts=1_000,
                    seed=0, crash=0.002)
    )  # fmt: skip
    observations, _ = envs.reset()
    for _ in range(chosen.steps):
        actions = (observations[:, 0] < 0.0).astype(np.int64)
        observations, *_ = envs.step(actions)

    watched = envs.statistics()
    print(f"{watched.episodes} episodes, mean return {watched.mean_return:.1f}")
    print(f"{envs.lost_environments} environments crashed and were replaced; {envs.num_envs} are running")
    for fault in envs.faults[:1]:
        print(f"the first: {str(fault).splitlines()[0]}")

    print(f"grown to {len(envs.resize(2 * chosen.num_envs))} environments without a restart")
    envs.close()


if __name__ == "__main__":
    main()
