"""Proof that contenders compute the same thing, before any of them is timed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

from velodrome.bench.hosts.host import Host
from velodrome.bench.report import Parity
from velodrome.bench.timing import action_ring
from velodrome.errors import VelodromeError
from velodrome.vector.make import make_vec

COMPARED_ENVS = 8  # beside peers

Steps = Iterable[Mapping[str, NDArray]]  # what a batch gives, step by step and by name: arrays of [environments, …]
Allowed = Mapping[str, tuple[float, float]]  # relative and absolute difference by a name's last word; else none


class ParityError(VelodromeError):
    """Two contenders that are not the same environment: their speeds must not be compared."""


def compare(reference: str, wanted: Steps, others: Sequence[tuple[str, Steps]], allowed: Allowed) -> Counter[str]:
    """Step through what everybody gives, side by side; raise ParityError where somebody differs from the reference.

    Returns what came up: how often each flag of the reference was set.
    """
    counts: Counter[str] = Counter()
    for step, (expected, *given) in enumerate(zip(wanted, *(steps for _, steps in others), strict=True)):
        counts.update({name: int(values.sum()) for name, values in expected.items() if values.dtype == bool})
        for (label, _), found in zip(others, given, strict=True):
            for name, values in expected.items():
                if np.array_equal(found[name], values):  # much faster than to look how close they are
                    continue
                close = allowed.get(name.split()[-1], (0.0, 0.0))
                agree = np.isclose(np.asarray(found[name], np.float64), values, *close, equal_nan=True)
                if not agree.all():
                    where = tuple(np.argwhere(~agree)[0])
                    raise ParityError(
                        f"{label} does not step as {reference} does: {name} differs at step {step} of environment "
                        f"{where[0]}: {found[name][where]} instead of {values[where]}. Nothing was timed."
                    )
    return counts


def play(
    envs: Any,
    actions: Iterable[Any],
    *,
    windows: int = 0,
    columns: Callable[[], Mapping[str, Any]] = dict,
    lowest_reward: float = -np.inf,
    **reset: Any,
) -> Iterator[dict[str, NDArray]]:
    """Yield what a batch of Gymnasium's kind shows first, and what it gives for each of the actions.

    windows: floats at the front of an observation that are copied and not computed. columns: returns what else to
    compare after a step.
    """

    def shown(when: str, observations: NDArray) -> dict[str, NDArray]:
        return {f"the {when}window": observations[:, :windows], f"the {when}observation": observations}

    yield shown("first ", envs.reset(**reset)[0])
    for chosen in actions:
        observations, rewards, terminated, truncated, infos = envs.step(chosen)
        ended = terminated | truncated
        found = {"terminated": terminated, "truncated": truncated, "ended": ended}
        found["the reward"] = np.maximum(rewards, lowest_reward)
        found |= {name: np.array(values) for name, values in columns().items()}
        if ended.any():
            found |= shown("final ", np.stack(infos["final_obs"][ended]))
        yield found | shown("", observations)


def compare_backends(
    env: str, values: Mapping[str, Any], seed: int, cases: Sequence[Mapping[str, Any]] = ({},), *, size: int, steps: int
) -> Parity:
    """Run the compiled and the uncompiled rule side by side, with each set of parameters; raise if a bit differs."""
    for case in cases:
        given = {"seed": seed, **values, **case}
        plain, compiled = (make_vec(env, size, backend=backend, **given) for backend in ("python", "native"))
        actions = action_ring(plain.single_action_space, size, seed, steps)
        label = f"the compiled {env} {dict(case) or ''}"
        compare("the plain rule", play(plain, actions), [(label, play(compiled, actions))], {})
        plain.close()
        compiled.close()
    told = "the plain rule to the bit" + (f" in {len(cases)} settings" if len(cases) > 1 else "")
    return Parity(contenders=["the compiled rule"], reference=told, steps=steps * size * len(cases))


def compare_with_plain(
    env: str,
    case: Any,
    peers: Mapping[str, Callable[..., Any]],
    allowed: Allowed,
    *,
    seed: int,
    steps: int,
    columns: Sequence[str],
    lowest_reward: float = -np.inf,
    draw: Callable[[np.random.Generator, NDArray], NDArray] = lambda generator, actions: actions,
) -> tuple[Counter[str], SyncVectorEnv]:
    """Run the native environment and its peers on the same starts and actions; raise if they differ.

    peers: `plain`, an environment for one account, and `numpy`, one for many, if there is one. columns: of the state,
    to compare too. draw: changes the sampled actions. Returns what came up, and the plain environments.
    """
    tables, size, market = case.tables, COMPARED_ENVS, case.values["market"]
    native = make_vec(env, size, backend="native", seed=seed, threads=1, **case.values)
    generator = np.random.default_rng(seed)
    starts = tables.random_starts(generator, size)
    # The native environment draws the next starts; the peers, which step after it, follow.
    makers = [partial(peers["plain"], tables, lambda row=row: int(native.column("start")[row])) for row in range(size)]
    batches: dict[str, Any] = {"plain": SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)}
    if "numpy" in peers:
        batches["numpy"] = peers["numpy"](tables, size, choose_starts=lambda rows: native.column("start")[rows])
    actions = [draw(generator, drawn) for drawn in action_ring(native.single_action_space, size, seed, steps)]

    def played(batch: Any, column: Callable[[str], Any], **reset: Any) -> Steps:
        given: dict[str, Any] = {"windows": int(market.window_floats), "lowest_reward": lowest_reward}
        return play(batch, actions, columns=lambda: {name: column(name) for name in columns}, **given, **reset)

    wanted = played(native, native.column, options={"cursor": starts})
    others = [(f"the {name} peer", played(batch, batch.get_attr)) for name, batch in batches.items()]
    counts = compare(f"native on the market {market.name!r}", wanted, others, allowed)
    native.close()
    return counts, batches["plain"]


# The same environment under several vectorisers

TRAJECTORY_CLOSE = dict.fromkeys(("reward", "observation"), (1e-5, 1e-5))  # SB3 keeps rewards as float32
TRAJECTORY_SECONDS = 0.6  # of stepping for each contender's
FEWEST, MOST = 10, 2_000  # steps of the batch


def steps_to_compare(step_seconds: float, num_envs: int) -> int:
    """Return for how many steps of the batch to compare, given the time of one environment's."""
    return int(np.clip(TRAJECTORY_SECONDS / (num_envs * max(step_seconds, 1e-6)), FEWEST, MOST))


def check_trajectories(reference: Host, hosts: Sequence[Host], steps: int) -> Parity | None:
    """Compare what every contender gives with the reference; raise ParityError if they differ.

    Returns None for an environment that does not repeat itself for the same seeds: it cannot be compared.
    """
    name = reference.spec.label
    wanted, again = (reference.ask("trajectory", TRAJECTORY_SECONDS, steps=steps) for _ in range(2))
    try:
        counts = compare(name, wanted, [("it", again)], TRAJECTORY_CLOSE)
    except ParityError:
        return None
    others = [host for host in hosts if host is not reference]
    for host in others:
        found = host.ask("trajectory", TRAJECTORY_SECONDS, steps=steps)
        compare(name, wanted, [(host.spec.label, found)], TRAJECTORY_CLOSE)
    total, labels = steps * reference.spec.num_envs, [host.spec.label for host in others]
    return Parity(contenders=labels, reference=name, steps=total, counts={"episodes": counts["ended"]})
