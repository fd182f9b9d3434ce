"""`make` and `make_vec`: from a name and parameters to one environment or to many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pkgutil import resolve_name
from typing import Any, Literal

from gymnasium.envs.registration import EnvSpec

from velodrome.envs.catalog import CATALOG
from velodrome.envs.contract import World
from velodrome.errors import BackendError, ConfigError, did_you_mean, sentence
from velodrome.vector.argument_checks import check_that_they_fit, checked_count
from velodrome.vector.cores import free_memory
from velodrome.vector.messages import tell
from velodrome.vector.native import NativeVectorEnv
from velodrome.vector.rule_env import ObservationKind
from velodrome.vector.single import RuleEnv
from velodrome.vector.workers.env_maker import EnvMaker, UnpicklableError, environment_makers, is_foreign
from velodrome.vector.workers.options import DEFAULTS as WORKER_DEFAULTS
from velodrome.vector.workers.options import (
    FOREIGN_BACKENDS,
    PROCESS_OPTIONS,
    CheckedValues,
    WorkerOptions,
    backend_name,
    check_option,
)

BACKENDS = ("auto", "native", "cuda", "python")
# Imported when they are needed.
FOREIGN_CLASSES = {
    "serial": "velodrome.vector.workers.serial:SerialVectorEnv",
    "process": "velodrome.vector.workers.process:ProcessVectorEnv",
    "async": "velodrome.vector.workers.asynchronous:AsyncVectorEnv",
    "ray": "velodrome.vector.workers.remote.batch:RayVectorEnv",
}
LEAST_BYTES = 2_500  # of one environment of another library; CartPole, one of the smallest, takes 2,900
# Options that only rules have, with their defaults.
RULE_DEFAULTS = {"observation": "flat", "check_actions": True, "threads": None, "specialise": None, "device": None}


def _world(env: str | World, params: dict[str, Any]) -> World:
    if isinstance(env, World):
        if params:
            raise ConfigError(f"a World has its parameters already; received {', '.join(params)} besides")
        return env
    if is_foreign(env):
        name = env.id if isinstance(env, EnvSpec) else env
        one = f"gymnasium.make({name!r})" if isinstance(name, str) else "calling it"
        raise ConfigError(f"env = {name!r} is an environment of Gymnasium: {one} makes one, vd.make_vec many")
    return CATALOG.get(env).make_world(**params)


def make(
    env: str | World,
    *,
    backend: Literal["native", "python"] = "native",
    seed: int | None = None,
    observation: ObservationKind = "flat",
    check_actions: bool = True,
    render_mode: Literal["ansi"] | None = None,
    **params: Any,
) -> RuleEnv:
    """Return one environment as a `gymnasium.Env`.

    env: a name in the catalogue ("trading"), with its parameters as keywords, or a World.
    backend: "native" compiles the rule; "python" runs it as plain Python, for a debugger.
    observation: "flat" (one vector: windows, then account), "dict" (a part each), or "cursor" (no windows).
    """
    if backend not in ("native", "python"):
        raise ConfigError(f"backend = {backend!r} for one environment; legal: 'native', 'python'")
    shared = {"seed": seed, "observation": observation, "check_actions": check_actions}
    return RuleEnv(_world(env, params), compiled=backend == "native", render_mode=render_mode, **shared)


def make_vec(
    env: Any,
    num_envs: int,
    *,
    backend: str = "auto",
    seed: int | None = None,
    copy: bool = False,
    autoreset: bool | str = True,
    check_values: CheckedValues = None,
    **options: Any,
) -> Any:
    """Return many environments as a `gymnasium.vector.VectorEnv`.

    env: a rule: a name in the catalogue ("trading"), with its parameters as keywords, or a World; or any Gymnasium
        environment: an id ("CartPole-v1") or a gymnasium.spec, a class or a callable, with parameters as keywords, or a
        list of them.
    backend: rules: "native" (all CPU cores), "cuda" (device tensors), "python" (uncompiled, slow), "auto" (native);
        others: "serial" (a loop in this process), "process" (workers, shared memory), "async" (workers, send and recv),
        "ray" (the same, in actors of a Ray cluster: docs/many_machines.md),
        "auto" (measured, and the reason told). "DummyVecEnv", "SubprocVecEnv", "ShmemVecEnv" are understood.
    seed: what environment i draws depends on (seed, i) only, not on the backend, the threads, workers or num_envs.
    copy: return copies; by default the arrays are views that the next step overwrites.
    autoreset: start the next episode in the step that ends one; False leaves that to reset(options={"reset_mask": …}),
        "next_step" does it in the step after (not for rules).
    check_values=None: treat as a failure of the environment: NaN, infinities, values outside their space, flags that
        are no booleans (True); all of that but finite numbers beyond the bounds of a Box ("finite"); nothing (False).
        None: "finite", but False for Velodrome's own rules and on "cuda", where the check waits for the device.

    Further options of rules:

    observation="flat": one vector (windows, then account); "dict": a part each; "cursor": no windows.
    check_actions=True: refuse actions outside their space; False leaves that to the caller.
    threads=None: threads of "native"; None measures from time to time whether all are faster than one.
    specialise=None: compile the parameters in as constants. Steps are faster, for one more compilation (kept on disk)
        per set of parameters. None does so on "cuda" only, where it gains more.
    device=None: GPU of the "cuda" backend, such as "cuda:1"; None is the first.

    Further options of other environments:

    workers=None: processes; None is one per core, and no more than environments.
    start_method="forkserver": how workers are started; or "spawn".
    on_fault="raise": what to do about an environment that raises, hangs, returns nonsense or dies; "restart" replaces
        it and cuts its episode off, "drop" goes on without it.
    max_restarts=10: of one environment.
    timeout=60.0: seconds that one call of an environment may take in a worker; None waits for ever.
    memory_limit=None: bytes of one worker, which is replaced when it grows beyond that.
    placement="fair": which worker takes the next environment: the one with the fewest; "fifo" in turn; "priority" the
        one whose environments take the least time; or a function of `velodrome.turns.Turn`.

    All other keywords are parameters of the environment.
    """
    check_option("check_values", check_values)
    of_rules, of_workers = _take(options, RULE_DEFAULTS), _take(options, WORKER_DEFAULTS)
    shared: dict[str, Any] = {"seed": seed, "copy": copy, "autoreset": autoreset}
    if is_foreign(env):
        _refuse_idle(of_rules, "rules of Velodrome", "an environment of another library")
        of_workers["check_values"] = check_values
        return _make_foreign(environment_makers(env, options), num_envs, backend_name(backend), of_workers, shared)
    if backend not in BACKENDS:
        raise ConfigError(
            f"backend = {backend!r} for a rule; legal: {', '.join(BACKENDS)}.{did_you_mean(str(backend), BACKENDS)}"
        )
    _refuse_idle(of_workers, "environments of other libraries", "a rule of Velodrome, which has no workers")
    if not isinstance(autoreset, bool):
        raise ConfigError(f"autoreset = {autoreset!r} for a rule; legal: True (in the same step), False")
    world = _world(env, options)
    shared["check_values"] = None if check_values is None else bool(check_values)
    if backend == "cuda":
        from velodrome.vector.cuda import CudaVectorEnv

        if "threads" in of_rules:
            raise ConfigError("threads is for the native backend; the cuda backend has one thread per environment")
        return CudaVectorEnv(world, num_envs, **of_rules, **shared)
    if "device" in of_rules:
        raise ConfigError(f"device = {of_rules['device']!r} is for backend='cuda'; {backend} runs on the CPU")
    return NativeVectorEnv(world, num_envs, compiled=backend != "python", **of_rules, **shared)


def _make_foreign(
    makers: list[EnvMaker], num_envs: int, backend: str, given: dict[str, Any], shared: dict[str, Any]
) -> Any:
    """Return many environments of another library. given: the options of workers that the caller has named."""
    if backend not in FOREIGN_BACKENDS:
        raise ConfigError(
            f"backend = {backend!r} for an environment that is no rule of Velodrome; legal: "
            f"{', '.join(FOREIGN_BACKENDS)}.{did_you_mean(backend, FOREIGN_BACKENDS)}"
        )
    check_that_they_fit(checked_count("num_envs", num_envs), LEAST_BYTES, free_memory)
    options = WorkerOptions(**given)
    idle = {name: given[name] for name in PROCESS_OPTIONS if given.get(name) is not None}
    if backend == "serial" and idle:
        raise ConfigError(
            f"{next(iter(idle))} is of worker processes, and backend = 'serial' has none. Leave it out, or use "
            "backend='process'."
        )
    if backend == "auto":
        from velodrome.vector.workers.autotune import recommend_backend

        advice = recommend_backend(makers, num_envs)
        backend = advice.backend
        options = replace(options, workers=options.workers or advice.workers or None)
        tell(f"{makers[0].name}: {advice.sentence()}")
    if backend != "serial":
        try:
            return resolve_name(FOREIGN_CLASSES[backend])(makers, num_envs, options=options, **shared)
        except UnpicklableError as error:
            if backend in ("async", "ray"):
                raise BackendError(
                    f"backend = {backend!r} cannot serve: {sentence(error)} No other has send() and recv()."
                ) from error
            instead = "The environments run in this process instead ('serial')."
            tell(f"backend 'process' cannot serve: {sentence(error)} {instead}")
    for name, value in idle.items():
        tell(f"{name} = {value!r} has no effect: the environments run in this process, without workers")
    return resolve_name(FOREIGN_CLASSES["serial"])(makers, num_envs, options=options, **shared)


def _take(options: dict[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Remove the options of one kind and return those that were given; None for a default of None counts as not."""
    named = {name: options.pop(name) for name in defaults if name in options}
    return {name: value for name, value in named.items() if value is not None or defaults[name] is not None}


def _refuse_idle(given: Mapping[str, Any], whose: str, received: str) -> None:
    """Refuse options that would have no effect."""
    for name in given:
        raise ConfigError(f"{name} is an option of {whose}, and this is {received}; leave it out")
