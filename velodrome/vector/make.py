"""`make` and `make_vec`: from a name and parameters to one environment or to many."""

from __future__ import annotations

from typing import Any, Literal

from velodrome.envs.catalog import CATALOG
from velodrome.envs.contract import World
from velodrome.errors import ConfigError, did_you_mean
from velodrome.vector.workers.options import TIMEOUT
from velodrome.vector.native import NativeVectorEnv
from velodrome.vector.rule_env import ObservationKind
from velodrome.vector.single import RuleEnv
from velodrome.vector.workers.make_foreign import is_foreign, make_foreign

Backend = Literal["auto", "native", "cuda", "python"]
BACKENDS = ("auto", "native", "cuda", "python")


def _world(env: str | World, params: dict[str, Any]) -> World:
    if isinstance(env, World):
        if params:
            raise ConfigError(f"a World has its parameters already; received {', '.join(params)} besides")
        return env
    if not isinstance(env, str):
        raise ConfigError(f"env must be the name of an environment or a World, received {env!r}")
    return CATALOG.get(env).make_world(**params)


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
    env: Any, num_envs: int, *, backend: Backend | str = "auto", seed: int | None = None,
    observation: ObservationKind = "flat", check_actions: bool = True, copy: bool = False,
    autoreset: bool | str = True, threads: int | None = None, specialise: bool | None = None,
    workers: int | None = None, start_method: Literal["forkserver", "spawn"] = "forkserver",
    on_fault: Literal["raise", "restart", "drop"] = "raise", max_restarts: int = 10, timeout: float | None = TIMEOUT,
    memory_limit: int | None = None, **params: Any,
) -> Any:  # fmt: skip
    """Return many environments as a `gymnasium.vector.VectorEnv`.

    env: a rule: a name in the catalogue ("trading"), with its parameters as keywords, or a World; or any Gymnasium
        environment: an id ("CartPole-v1"), a class or a callable, with parameters as keywords, or a list of them.
    backend: rules: "native" (all CPU cores), "cuda" (device tensors), "python" (uncompiled, slow), "auto" (native);
        others: "serial" (a loop in this process), "process" (workers, shared memory), "async" (workers, send and recv),
        "auto" (measured, and the reason told). "DummyVecEnv", "SubprocVecEnv", "ShmemVecEnv" are understood.
    seed: environment i draws from what (seed, i) gives, whatever the backend, the threads, workers and num_envs.
    copy: return copies; by default the arrays are views that the next step overwrites.
    autoreset: start the next episode in the step that ends one; False leaves that to reset(options={"reset_mask": …}),
        "next_step" does it in the step after (not for rules).

    Rules only. observation: "flat" (one vector: windows, then account), "dict" (a part each), or "cursor" (no windows).
    check_actions: refuse actions outside their space; False leaves that to the caller.
    threads: threads for "native"; None measures now and then whether all are faster than one.
    specialise: compile the parameters in as constants: faster steps for one more compilation (kept on disk) per set of
        parameters; None does so on "cuda", where it is worth more.

    Others only. workers: processes; None is one for each core, at most one for each environment.
    start_method: of workers, "forkserver" or "spawn".
    on_fault: what to do about an environment that raises, hangs, returns nonsense or dies: "raise", "restart" it (its
        episode is cut off) or go on without it ("drop").
    max_restarts: of one environment. timeout: seconds that one call of it may take in a worker; None waits for ever.
    memory_limit: bytes of one worker, which is replaced when it grows beyond.
    """
    if is_foreign(env):
        idle = {"observation": observation != "flat", "check_actions": not check_actions,
                "threads": threads is not None, "specialise": specialise is not None}  # fmt: skip
        _refuse_idle(idle, "rules of Velodrome", "an environment of another library")
        return make_foreign(
            env, num_envs, backend=backend, seed=seed, copy=copy, autoreset=autoreset, workers=workers,
            start_method=start_method, on_fault=on_fault, max_restarts=max_restarts, timeout=timeout,
            memory_limit=memory_limit, params=params,
        )  # fmt: skip
    if backend not in BACKENDS:
        raise ConfigError(
            f"backend = {backend!r} for a rule; legal: {', '.join(BACKENDS)}.{did_you_mean(str(backend), BACKENDS)}"
        )
    idle = {"workers": workers is not None, "start_method": start_method != "forkserver",
            "on_fault": on_fault != "raise", "max_restarts": max_restarts != 10, "timeout": timeout != TIMEOUT,
            "memory_limit": memory_limit is not None}  # fmt: skip
    _refuse_idle(idle, "environments of other libraries", "a rule of Velodrome, which has no workers")
    if not isinstance(autoreset, bool):
        raise ConfigError(f"autoreset = {autoreset!r} for a rule; legal: True (in the same step), False")
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


def _refuse_idle(idle: dict[str, bool], whose: str, received: str) -> None:
    """Refuse options that would have no effect."""
    for name, is_set in idle.items():
        if is_set:
            raise ConfigError(f"{name} is an option of {whose}, and this is {received}; leave it out")
