"""Lets the CUDA engine and the kernels of rollouts run in Numba's simulator, beside what they must agree with.

Run as `python simulated_gpu.py FILE` with NUMBA_ENABLE_CUDASIM=1, which must be set before Numba is imported:
hence a process of its own, one for all cases. Pairs of tensors (found, expected) are pickled by case.
"""

from __future__ import annotations

import pickle
import sys
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))

import numpy as np
import torch

import velodrome as vd
from tests.learn.engines.engine_cases import (
    CASES,
    ROWS,
    STEPS,
    Case,
    copy_rollout,
    disturb,
    fill,
    learned,
    make_setting,
    observations,
)
from tests.learn.engines.engine_cases import surprise as give_outcome
from tests.markets import small_market
from tests.oracles.gae import slow_advantages, slow_discounted
from velodrome.learn.engines.choice import cannot_serve
from velodrome.learn.engines.cpu.engine import FusedEngine
from velodrome.learn.engines.gpu.engine import CudaEngine
from velodrome.rollout import cuda_rows, disturbance, launch
from velodrome.rollout.disturbance import Strength
from velodrome.rollout.worlds import CudaWorlds, make_worlds

PARTED = [CASES[2], CASES[-1]]  # a discrete one that shares its trunk, and a Gaussian one


def compare_engines(case: Case) -> dict[str, Any]:
    ours, theirs, fused = make_setting(case), make_setting(case), make_setting(case)
    assert cannot_serve("cuda", ours.task) is None
    engine = CudaEngine(ours.task, ours.rollout)
    reference, loops = theirs.autograd(), FusedEngine(fused.task, fused.rollout)
    disturb(ours, theirs, fused)
    for setting, one in ((ours, engine), (theirs, reference), (fused, loops)):
        fill(setting, one)
    # From the same noise, the CPU's loops draw the same actions.
    found: dict[str, Any] = {"actions": (ours.rollout.actions.clone(), fused.rollout.actions.clone())}
    outputs = [theirs.policy(seen, theirs.bank) for seen in observations(theirs)]
    log_prob = [
        theirs.policy.distribution.log_prob(given.parameters, theirs.policy.log_std, ours.rollout.actions[t]).detach()
        for t, given in enumerate(outputs)
    ]
    found["log_prob"] = (ours.rollout.log_prob.clone(), torch.stack(log_prob))
    found["value"] = (ours.rollout.value.clone(), torch.stack([given.value.detach() for given in outputs]))
    last = observations(ours)[STEPS - 1]
    found["later value"] = (engine.value(last, torch.zeros(0)), outputs[-1].value.detach())
    give_outcome(ours)
    copy_rollout(ours.rollout, theirs.rollout)
    for one in (engine, reference):
        one.begin_update()
    for number, rows in enumerate((ROWS, ROWS.flip(0)[:4])):  # the second after the weights have changed
        own, other = learned(ours, engine, rows), learned(theirs, reference, rows)
        assert own.keys() == other.keys()
        found |= {f"{number} {name}": (tensor, other[name]) for name, tensor in own.items()}
    return found


def compare_parts(case: Case) -> dict[str, Any]:
    """Let the engine learn from whole minibatches, and from parts of them."""
    one, other = make_setting(case), make_setting(case)
    whole, parts = (CudaEngine(setting.task, setting.rollout) for setting in (one, other))
    parts.let_go()
    parts.split(3)
    fill(one, whole)
    fill(other, parts)
    give_outcome(one)
    copy_rollout(one.rollout, other.rollout)
    for engine in (whole, parts):
        engine.begin_update()
    expected, found = learned(one, whole, ROWS), learned(other, parts, ROWS)
    return {name: (tensor, expected[name]) for name, tensor in found.items()}


def compare_sums() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    steps, count = 7, 4
    floats = [rng.normal(size=(steps, count)).astype(np.float32) for _ in range(3)]
    last_value, carried = (rng.normal(size=count).astype(np.float32) for _ in range(2))
    terminated, truncated = (rng.random((steps, count)) < 0.2 for _ in range(2))
    tensors = [torch.from_numpy(array) for array in (*floats, last_value, terminated, truncated)]
    advantage, returns, running = torch.zeros(steps, count), torch.zeros(steps, count), torch.tensor(carried)
    gamma, decay = np.float32(0.9), np.float32(0.8)
    cuda_rows.write_advantages(count, *tensors, gamma, decay, advantage)
    cuda_rows.write_discounted(count, tensors[0], tensors[4], tensors[5], gamma, running, returns)
    expected, left = slow_discounted(floats[0], terminated | truncated, 0.9, carried)
    wanted = slow_advantages(*floats, last_value, terminated, truncated, 0.9, 0.8)
    return {
        "advantages": (advantage, torch.from_numpy(wanted).float()),
        "returns": (returns, torch.from_numpy(expected).float()),
        "running": (running, torch.from_numpy(left).float()),
    }


def compare_worlds() -> dict[str, Any]:
    options: dict[str, Any] = {"market": small_market(bars=60, instruments=2), "observation": "cursor", "seed": 3,
                               "episode_length": (3, 6), "leverage": 20.0}  # fmt: skip
    cuda, native = (make_worlds(vd.make_vec("trading", 4, backend=name, **options)) for name in ("cuda", "native"))
    assert isinstance(cuda, CudaWorlds)
    found: dict[str, Any] = {}
    generator = torch.Generator().manual_seed(0)
    saved: Any = None
    for worlds in (cuda, native):
        worlds.reset(7)
    for t in range(16):
        if t == 8:
            saved = cuda.state(), native.state()
        actions = torch.randint(0, 3, (4,), generator=generator)
        for worlds in (cuda, native):
            worlds.step(actions)
        ended = cuda.terminated | cuda.truncated
        for name in ("reward", "terminated", "truncated"):
            found[f"{t} {name}"] = (getattr(cuda, name).clone(), getattr(native, name).clone())
        for name, ours, theirs in (("seen", cuda.observation, native.observation), ("last", cuda.final, native.final)):
            rows = torch.ones(4, dtype=torch.bool) if name == "seen" else ended
            found[f"{t} {name} values"] = (ours.values[rows].clone(), theirs.values[rows].clone())
            found[f"{t} {name} cursor"] = (ours.cursor[rows].clone(), theirs.cursor[rows].clone())
    own, other = (worlds.mean_episode(worlds.take_sums().tolist()) for worlds in (cuda, native))
    assert own.keys() == other.keys()
    assert own["episode/count"] > 5
    found["episodes"] = (torch.tensor(list(own.values())), torch.tensor(list(other.values())))
    for worlds, state in zip((cuda, native), saved, strict=True):
        worlds.load_state(state)
        worlds.step(torch.zeros(4, dtype=torch.int64))
    found["resumed"] = (cuda.observation.values.clone(), native.observation.values.clone())
    return found


def compare_disturbances() -> dict[str, Any]:
    """Let a GPU's kernels, and the CPU's loops, disturb the same table."""
    worlds = make_worlds(vd.make_vec("trading", 2, market=small_market(bars=60), observation="cursor"))
    worlds.disturb(Strength(noise=0.7, mask_features=0.3, mask_bars=0.2), 3)
    assert worlds.disturbance is not None
    worlds.renew(96)
    expected = worlds.bank.table.clone()
    disturbance.on_device = lambda tensor: True
    worlds.bank.table.zero_()
    worlds.renew(96)
    return {"table": (worlds.bank.table, expected)}


def tried(compare: Any, *arguments: Any) -> Any:
    try:
        return compare(*arguments)
    except Exception:
        # The other cases are still worth knowing; the test of this one shows the traceback.
        return traceback.format_exc()


if __name__ == "__main__":
    torch.set_num_threads(1)
    launch.THREADS = 8  # the simulator starts a thread of Python for each; and several blocks have to add up
    results = {case.name: tried(compare_engines, case) for case in CASES}
    results |= {f"parts of {case.name}": tried(compare_parts, case) for case in PARTED}
    results["sums"] = tried(compare_sums)
    results["worlds"] = tried(compare_worlds)
    results["disturbances"] = tried(compare_disturbances)
    Path(sys.argv[1]).write_bytes(pickle.dumps(results))
