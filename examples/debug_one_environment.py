"""One environment as plain Python: a debugger steps into the rule, and the state prints as it changes.

Set a breakpoint in `step` of velodrome/envs/trading/rule.py, or run `python -m pdb examples/debug_one_environment.py`.
"""

from __future__ import annotations

import argparse

import velodrome as vd

SHORT, FLAT, LONG = 0, 1, 2  # the actions of the default levels (−1, 0, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bars", type=int, default=500)
    parser.add_argument("--steps", type=int, default=12)
    chosen = parser.parse_args()
    market = vd.build_market(vd.synthetic_bars("ou", chosen.bars, seed=2), windows=4)
    env = vd.make(
        "trading", market=market, backend="python", render_mode="ansi", start="first", episode_length=chosen.steps,
        leverage=2.0, fee=0.0005, seed=0,
    )  # fmt: skip
    observation, _ = env.reset()
    names = env.envs.world.observed
    print(f"observation: {observation.shape}; its last {len(names)} values are {', '.join(names)}")
    print(env.render())
    for k in range(chosen.steps):
        action = (LONG, LONG, FLAT, SHORT)[k % 4]
        observation, reward, terminated, truncated, info = env.step(action)
        state = env.state()
        print(f"\naction {action}, reward {reward:+.6f}, terminated {terminated}, truncated {truncated}")
        print(env.render())
        print({name: state[name].item() for name in ("cursor", "cash", "units", "entry", "equity", "fees", "held")})
        if terminated or truncated:
            shown = ("return", "length", "fees", "turnover", "trades", "max_drawdown")
            print("\nepisode:", {name: round(info["statistics"][name], 6) for name in shown})
            break


if __name__ == "__main__":
    main()
