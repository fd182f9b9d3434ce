"""Checks of the adapters on the cuda backend, on a device or in Numba's simulator.

`NUMBA_ENABLE_CUDASIM=1 python device_cases.py` runs those that need no device.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

import velodrome as vd
from tests.markets import small_market

MARKET = small_market()


def trading(backend: str, num_envs: int = 4, **options: Any) -> Any:
    return vd.make_vec(
        "trading", num_envs, market=MARKET, backend=backend, seed=3, episode_length=(3, 6), fee=0.001, **options
    )


def check_torchrl(observation: str, **options: Any) -> None:
    """Play the same episodes on both backends, some of them begun again half-way."""
    import torch

    from velodrome.adapters import tensor_episodes
    from velodrome.adapters.torchrl import to_torchrl

    launched: list[Any] = []
    begin = tensor_episodes.begin_on_device
    tensor_episodes.begin_on_device = lambda rule, rows: (launched.append(rows), begin(rule, rows))[1]
    host, device = (to_torchrl(trading(name, observation=observation, **options)) for name in ("native", "cuda"))
    assert device.envs.check_actions is False
    generator = torch.Generator().manual_seed(0)
    ours, theirs = device.reset(), host.reset()
    ends = 0
    for step in range(10):
        actions = torch.randint(0, 3, (4,), generator=generator)
        stepped, ours = device.step_and_maybe_reset(ours.set("action", actions.to(device.device)))
        expected, theirs = host.step_and_maybe_reset(theirs.set("action", actions))
        assert (stepped["next"].cpu() == expected["next"]).all(), step
        assert _same_root(ours, theirs), step
        ends += int(expected["next", "done"].sum())
        if step % 5 == 3:
            rows = torch.rand(4, 1, generator=generator) < 0.5
            ours = device.reset(ours.set("_reset", rows.to(device.device)))
            theirs = host.reset(theirs.set("_reset", rows))
            assert _same_root(ours, theirs), step
    assert ends > 4
    # Only for what was asked for: episodes that ended were begun again by the step itself.
    tensor_episodes.begin_on_device = begin
    assert len(launched) == 2


def _same_root(ours: Any, theirs: Any) -> bool:
    assert set(ours.keys()) == set(theirs.keys())
    return bool((ours.exclude("action").cpu() == theirs.exclude("action")).all())


def check_refused_action() -> None:
    """In the simulator an assertion of the device is an ordinary error."""
    import pytest
    import torch

    from velodrome.adapters.torchrl import to_torchrl

    env = to_torchrl(trading("cuda"))
    current = env.reset().set("action", torch.tensor([0, 1, 3, 0]))
    before = env.envs.column("cursor")
    with pytest.raises(RuntimeError, match="outside its space"):
        env.step(current)
    np.testing.assert_array_equal(env.envs.column("cursor"), before)


def check_changed_flags() -> None:
    """Episodes that someone else declares done are begun again too, whether the flags are new or changed in place."""
    import torch
    from torchrl.envs.utils import step_mdp

    from velodrome.adapters.torchrl import to_torchrl

    for in_place in (True, False):
        env = to_torchrl(trading("cuda"))
        actions = torch.ones(4, dtype=torch.int64, device=env.device)
        after = step_mdp(env.step(env.reset().set("action", actions)))
        assert not after["done"].any()
        before = env.envs.column("episode")
        if in_place:
            after["done"][2] = True
        else:
            after["done"] = torch.tensor([[False], [False], [True], [False]], device=env.device)
        begun = env.maybe_reset(after)
        assert (env.envs.column("episode") - before).tolist() == [0, 0, 1, 0]
        assert torch.equal(begun["observation"], env.envs.buffers.out.observations)
        assert not begun["done"].any()


def check_wrapped() -> None:
    """A wrapper between the adapter and the environments: its own reset begins new episodes."""
    import torch
    from gymnasium.vector import VectorWrapper

    from velodrome.adapters.torchrl import to_torchrl

    env = to_torchrl(VectorWrapper(trading("cuda")))
    plain = to_torchrl(trading("cuda"))
    rows = torch.tensor([[True], [False]] * 2, device=env.device)
    seen = []
    for one in (env, plain):
        current = one.reset()
        current = one.step_and_maybe_reset(current.set("action", torch.ones(4, dtype=torch.int64, device=one.device)))[
            1
        ]
        seen.append(one.reset(current.set("_reset", rows))["observation"])
    assert torch.equal(*seen)


def check_sb3(observation: str) -> None:
    """Stable-Baselines3 sees the same arrays, on the host."""
    from velodrome.adapters.sb3 import to_sb3

    host, device = (to_sb3(trading(name, observation=observation)) for name in ("native", "cuda"))
    rng = np.random.default_rng(0)
    _same(device.reset(), host.reset())
    kept = []
    for _ in range(8):
        actions = rng.integers(0, 3, 4)
        ours, theirs = device.step(actions), host.step(actions)
        for mine, other in zip(ours[:3], theirs[:3], strict=True):
            _same(mine, other)
        for mine, other in zip(ours[3], theirs[3], strict=True):
            for info in (mine, other):
                info.get("episode", {}).pop("t", None)
            _same(mine, other)
        kept.append((ours[1], theirs[1]))
    for mine, other in kept:
        _same(mine, other)


def _same(ours: Any, theirs: Any) -> None:
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for key in theirs:
            _same(ours[key], theirs[key])
    else:
        assert type(ours) is type(theirs), (type(ours), type(theirs))
        np.testing.assert_array_equal(ours, theirs)


if __name__ == "__main__":
    check_torchrl("dict")
    check_torchrl("flat", copy=True)
    check_refused_action()
    check_changed_flags()
    check_wrapped()
    for kind in ("flat", "dict"):
        check_sb3(kind)
    sys.stdout.write("agreed\n")
