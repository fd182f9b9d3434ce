"""Steps per second of the trading environment on a CUDA device, the whole rule, steps captured in a CUDA graph.

    python benchmarks/cuda_step.py [--json FILE]

Parity comes first: the same environments are run on the CPU, and every state column must have the same bits (sums of
logarithms excepted: CUDA's logarithm may differ in the last place). Needs a CUDA device, torch, numba and numba-cuda.
"""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path

import numba
import numpy as np
import torch

import velodrome as vd
from velodrome.envs.contract import state_columns
from velodrome.tables.market import Market
from velodrome.tables.windows import WindowPart, stack_windows
from velodrome.writing import replace_text

BARS, LENGTH, FEATURES = 100_000, 32, 8
RING = 16  # different actions in one captured graph
PARITY = {
    "levels": {"fee": 1e-3, "episode_length": 40},
    "brackets": {"action": "brackets", "leverage": 20.0, "slippage": 1e-4, "fee": 1e-4, "episode_length": 60},
    "ranges": {
        "action": "continuous", "fee": (0.0, 0.01), "leverage": (1.0, 20.0), "half_spread": 1e-4, "funding": 1e-4,
        "reward": "differential_sharpe", "episode_length": (10, 90), "cooldown": 2, "flat_at_session_end": True,
        "turnover_cap": 5.0,
    },
}  # fmt: skip


def benchmark_market(seed: int = 0) -> Market:
    """Return a random walk with random features: the kernels do not care what the numbers mean."""
    rng = np.random.default_rng(seed)
    close = 100.0 * np.exp(np.cumsum(rng.normal(0.0, 1e-3, BARS)))
    opened = np.r_[100.0, close[:-1]]
    ohlc = np.stack([opened, np.maximum(opened, close) * 1.0005, np.minimum(opened, close) * 0.9995, close], axis=1)
    features = rng.normal(size=(BARS, FEATURES)).astype(np.float32)
    session_last = np.zeros(BARS, np.uint8)
    session_last[1439::1440] = 1
    return Market(
        symbols=("walk",), timeframe="1m", timezone="UTC", time=np.arange(BARS) * 60_000_000_000, ohlc=ohlc,
        volume=np.ones(BARS), atr=np.full(BARS, 0.1), session_last=session_last, columns={},
        begin=np.array([LENGTH - 1]), end=np.array([BARS]),
        windows=stack_windows([(LENGTH, [WindowPart(features, np.arange(BARS))])]), window_names=("1m",),
        feature_names=(tuple(f"f{k}" for k in range(FEATURES)),),
    )  # fmt: skip


def check_parity(market: Market, steps: int = 150, num_envs: int = 2048) -> dict[str, str]:
    """Run CUDA beside the CPU and return what was found, by configuration; a difference ends the program."""
    found = {}
    for name, params in PARITY.items():
        device = vd.make_vec("trading", num_envs, backend="cuda", market=market, seed=3, **params)
        host = vd.make_vec("trading", num_envs, backend="native", market=market, seed=3, **params)
        np.testing.assert_array_equal(device.reset()[0].cpu().numpy(), host.reset()[0])
        rng = np.random.default_rng(0)
        space = host.single_action_space
        worst = 0.0
        for _ in range(steps):
            discrete = hasattr(space, "n")
            actions = rng.integers(0, space.n, num_envs) if discrete else rng.uniform(-1, 1, (num_envs, 1))
            theirs = device.step(actions if discrete else actions.astype(np.float32))
            ours = host.step(actions if discrete else actions.astype(np.float32))
            for left, right in zip((theirs[0], *theirs[2:4]), (ours[0], *ours[2:4]), strict=True):
                np.testing.assert_array_equal(left.cpu().numpy(), right)
            rewards = theirs[1].cpu().numpy()
            worst = max(worst, float((np.abs(rewards - ours[1]) / np.spacing(np.abs(ours[1]) + 1e-30)).max()))
            if ours[4]:
                ended = ours[4]["_final_obs"]
                np.testing.assert_array_equal(theirs[4]["final_obs"].cpu().numpy()[ended], ours[4]["final_obs"][ended])
        assert worst <= 2.0, f"rewards differ by {worst} units in the last place"
        for column in state_columns(host.world.state_type):
            left, right = device.column(column), host.column(column)
            if column == "reward_sum":
                np.testing.assert_allclose(left, right, rtol=1e-12, atol=1e-12)
            else:
                np.testing.assert_array_equal(left, right, err_msg=column)
        found[name] = f"{num_envs} environments × {steps} steps: equal bits, rewards within {worst:g} ulp"
        print(f"parity, {name}: {found[name]}", flush=True)
    return found


def seconds_per_step(envs, actions: list, repeats: int = 20) -> float:
    """Return the median time of one step inside a captured graph of several."""
    for action in actions[:3]:
        envs.step_kernels(action)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for action in actions:
            envs.step_kernels(action)
    for _ in range(3):
        graph.replay()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 1e3 / len(actions))
    return float(np.median(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--sizes", type=int, nargs="+", default=[4096, 16384, 65536, 131072, 262144])
    options = parser.parse_args()
    market = benchmark_market()
    device = torch.cuda.get_device_name()
    print(f"{device}, torch {torch.__version__}, numba {numba.__version__}, Python {platform.python_version()}")
    rows: list[dict] = []
    report = {"device": device, "torch": torch.__version__, "parity": check_parity(market), "rows": rows}
    print(f"\n{'environments':>12} {'windows':>8} {'actions':>8} {'kernel':>12} {'µs/step':>8} {'steps/s':>10}")
    for num_envs in options.sizes:
        for windows, acts, specialise in (
            (False, "random", True), (False, "random", False), (False, "held", True), (True, "random", True),
        ):  # fmt: skip
            envs = vd.make_vec(
                "trading", num_envs, backend="cuda", market=market, seed=0, fee=1e-3, episode_length=1000,
                observation="flat" if windows else "cursor", check_actions=False, specialise=specialise,
            )  # fmt: skip
            envs.reset()
            ring = [torch.randint(0, 3, (num_envs,), device="cuda") for _ in range(RING)]
            if acts == "held":
                ring = [torch.full((num_envs,), 2, device="cuda")] * RING
            seconds = seconds_per_step(envs, ring)
            row = {
                "num_envs": num_envs, "windows": windows, "actions": acts, "specialised": specialise,
                "microseconds": seconds * 1e6, "steps_per_second": num_envs / seconds,
                "bytes_per_environment": envs.buffers.bytes_per_environment,
            }  # fmt: skip
            rows.append(row)
            kernel = "specialised" if specialise else "general"
            shown = "yes" if windows else "no"
            speed = f"{num_envs / seconds / 1e9:.2f} G"
            print(f"{num_envs:>12,} {shown:>8} {acts:>8} {kernel:>12} {seconds * 1e6:>8.2f} {speed:>10}", flush=True)
    if options.json:
        replace_text(options.json, json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
