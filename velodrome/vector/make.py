"""`make` and `make_vec`: from a name and parameters to one environment or to many."""

from __future__ import annotations

from typing import Any, Literal

from velodrome.envs.catalog import world_factory
from velodrome.envs.contract import World
from velodrome.errors import ConfigError, did_you_mean
from velodrome.vector.native import NativeVectorEnv
from velodrome.vector.rule_env import ObservationKind, RuleVectorEnv
from velodrome.vector.single import RuleEnv

Backend = Literal["auto", "native", "cuda", "python"]
BACKENDS = ("auto", "native", "cuda", "python")


def _world(env: str | World, params: dict[str, Any]) -> World:
    if isinstance(env, World):
        if params:
            raise ConfigError(f"a World has its parameters already; received {', '.join(params)} besides")
        return env
    if not isinstance(env, str):
        raise ConfigError(f"env must be the name of an environment or a World, received {env!r}")
    return world_factory(env)(**params)


def make(
    env: str | World, *, backend: Literal["native", "python"] = "native", seed: int | None = None,
    observation: ObservationKind = "flat", check_actions: bool = True, render_mode: Literal["ansi"] | None = None,
    **params: Any,
) -> RuleEnv:  # fmt: skip
    """Return one environment as a `gymnasium.Env`.

    env: a name in the catalogue ("trading"), with its parameters as keywords, or a World.
    backend: "native" compiles the rule; "python" runs it as plain Python, for a debugger.
    observation: "flat" (one vector: windows, then account), "dict" (a part each), or "cursor" (no windows).
    """
    if backend not in ("native", "python"):
        raise ConfigError(f"backend = {backend!r} for one environment; legal: 'native', 'python'")
    return RuleEnv(
        _world(env, params), seed=seed, observation=observation, check_actions=check_actions,
        compiled=backend == "native", render_mode=render_mode,
    )  # fmt: skip


def make_vec(
    env: str | World, num_envs: int, *, backend: Backend = "auto", seed: int | None = None,
    observation: ObservationKind = "flat", check_actions: bool = True, copy: bool = False, autoreset: bool = True,
    threads: int | None = None, specialise: bool | None = None, **params: Any,
) -> RuleVectorEnv:  # fmt: skip
    """Return many environments as a `gymnasium.vector.VectorEnv`.

    env: a name in the catalogue ("trading"), with its parameters as keywords, or a World.
    backend: "native" (all CPU cores), "cuda" (device tensors), "python" (uncompiled, slow), or "auto" (native).
    seed: environment i draws from the stream (seed, i), whatever the backend, the threads and num_envs.
    observation: "flat" (one vector: windows, then account), "dict" (a part each), or "cursor" (no windows).
    check_actions: refuse actions outside their space; False leaves that to the caller.
    copy: return copies; by default the arrays are views that the next step overwrites.
    autoreset: start the next episode in the step that ends one; False leaves that to reset(options={"reset_mask": …}).
    threads: threads for "native"; None measures now and then whether all are faster than one.
    specialise: compile the parameters in as constants: faster steps for one more compilation (kept on disk) per set of
        parameters; None does so on "cuda", where it is worth more.
    """
    if backend not in BACKENDS:
        raise ConfigError(f"backend = {backend!r}; legal: {', '.join(BACKENDS)}.{did_you_mean(str(backend), BACKENDS)}")
    world = _world(env, params)
    shared: dict[str, Any] = {"seed": seed, "observation": observation, "check_actions": check_actions, "copy": copy,
                              "autoreset": autoreset}  # fmt: skip
    if backend == "cuda":
        from velodrome.vector.cuda import CudaVectorEnv

        if threads is not None:
            raise ConfigError("threads is for the native backend; the cuda backend has one thread per environment")
        return CudaVectorEnv(world, num_envs, specialise=specialise is not False, **shared)
    return NativeVectorEnv(
        world, num_envs, threads=threads, compiled=backend != "python", specialise=bool(specialise), **shared
    )  # fmt: skip
