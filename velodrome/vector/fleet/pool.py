"""`EnvPool`: environments for several trainings at once, under one budget of environments and memory."""

from __future__ import annotations

import atexit
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from velodrome.errors import BackendError, ConfigError
from velodrome.vector.argument_checks import checked_count
from velodrome.vector.fleet.autoscale import bytes_in_use
from velodrome.vector.fleet.budget import Budget, Holding, PoolBusyError, PoolStatus, Ticket
from velodrome.vector.fleet.specification import Specification, specification_of
from velodrome.vector.make import make_vec
from velodrome.vector.rule_env import RuleVectorEnv
from velodrome.vector.seeding import spread_seeds

__all__ = ["EnvPool", "Lease", "PoolBusyError", "PoolStatus", "shared_pool"]

Result = TypeVar("Result")


class Lease:
    """Environments on loan. As a context manager it yields them, and gives them back at the end.

    A forgotten lease gives them back too, once nothing refers to it or to its environments.
    """

    def __init__(self, pool: EnvPool, holding: Holding, envs: Any) -> None:
        self._pool, self._holding, self._envs = pool, holding, envs
        self._releasing = threading.Lock()

    @property
    def envs(self) -> Any:
        """The environments, freshly reset. After the release they belong to the pool again."""
        if self._envs is None:
            raise BackendError("this lease was released; its environments may serve someone else. Take a new lease.")
        return self._envs

    @property
    def num_envs(self) -> int:
        """How many there are."""
        return self.envs.num_envs

    @property
    def most_envs(self) -> int:
        """The most environments that `resize` would grant at this moment."""
        return self._pool._budget.room_of(self._holding)

    def resize(self, num_envs: int, *, timeout: float | None = 0.0) -> Any:
        """Change the number of environments and return the observations of all.

        timeout: seconds to wait for room in the budget; 0 refuses at once, None waits as long as it takes.
        `envs.resize(n)` does the same with timeout=0, so a learner that resizes stays within the budget.
        """
        return self._pool._resize_lease(self._holding, self.envs, num_envs, timeout)

    def release(self, *, reusable: bool = True) -> None:
        """Give the environments back; a second call does nothing.

        They are closed instead of kept if any of them ever failed or was closed, or if they are not `reusable`.
        """
        with self._releasing:
            envs, self._envs = self._envs, None
        if envs is not None:
            self._pool._take_back(self._holding, envs, reusable)

    def on_close(self) -> Any:
        """Return the environments; to close them gives them back."""
        envs = self.envs

        def close(**_: Any) -> None:
            vars(envs).pop("close", None)
            self.release()

        envs.close = close
        return envs

    def __enter__(self) -> Any:
        return self.envs

    def __exit__(self, kind: object, *error: object) -> None:
        # After an exception they may be in the middle of a step.
        self.release(reusable=kind is None)


class EnvPool:
    """Owns environments and lends them, first come, first served; safe to use from several threads.

    max_concurrent_envs: the most environments that exist at any moment, idle ones included.
    memory_limit: bytes that all of them may take. When environments of a new kind are made, the pool measures what one
        takes: by how much the memory of this process and its children grows. Memory of a GPU is not counted.

    Environments that are given back stay idle for the next lease of the same kind (same env, backend and parameters).
    They are closed, the oldest first, when others need the budget.
    """

    def __init__(self, max_concurrent_envs: int, *, memory_limit: int | None = None) -> None:
        self._budget = Budget(max_concurrent_envs, memory_limit)
        # If two were made at the same time, nobody could say which of them the memory grew for.
        self._measuring = threading.Lock()

    def _make(self, env: Any, num_envs: int, options: dict[str, Any]) -> Any:
        return make_vec(env, num_envs, **options)

    def lease(
        self, env: Any, num_envs: int, *, timeout: float | None = None, seed: int | None = None, **options: Any
    ) -> Lease:
        """Lend environments, as `vd.make_vec(env, num_envs, seed=seed, **options)` makes them, reset with the seed.

        Waits until budget and memory allow, `timeout` seconds at most (None: as long as it takes; making them is not
        counted). Whoever asked first gets first. What could never be granted is refused at once.
        step_timeout: what `make_vec` calls timeout, seconds that one call of an environment in a worker may take.
        """
        if "step_timeout" in options:
            options["timeout"] = options.pop("step_timeout")
        num_envs = checked_count("num_envs", num_envs)
        seed = int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed
        specification = specification_of(env, options)
        deadline = None if timeout is None else time.monotonic() + timeout
        ticket = Ticket(specification, num_envs)
        while True:
            grant = self._budget.wait(ticket, deadline)
            holding = grant.holding
            try:
                _close_all(grant.evicted)
                envs = _reused(grant.reused, num_envs, seed)
                if envs is None:
                    envs = self._made(specification, env, num_envs, {**options, "seed": seed})
                self._budget.charge(holding, num_envs)
                _close_all(self._budget.evict())
                if self._budget.is_within_memory():
                    return self._hand_over(holding, envs, options.get("backend", "auto") == "auto")
                # Measured only now, and too much besides what others have.
                _close(envs, specification.label)
            except BaseException:
                self._budget.forget(holding)
                raise
            self._budget.join_again(ticket, holding)

    def _made(self, specification: Specification, env: Any, num_envs: int, options: dict[str, Any]) -> Any:
        def make(count: int = num_envs) -> Any:
            envs = self._make(env, count, options)
            try:
                _start(envs, options["seed"])
            except BaseException:
                _close(envs, specification.label)
                raise
            return envs

        if self._budget.memory_limit is not None and specification not in self._budget.sizes:
            # The first of a kind also loads code that all others share, so it is not measured.
            with self._measuring:
                _close(make(1), specification.label)
        return self._measured(specification, num_envs, make)

    def _measured(self, specification: Specification, count: int, enlarge: Callable[[], Result]) -> Result:
        """Make some environments and note what memory they take."""
        with self._measuring:
            before = bytes_in_use()
            result = enlarge()
            self._budget.note_size(specification, count, bytes_in_use() - before)
        return result

    def _hand_over(self, holding: Holding, envs: Any, automatic: bool) -> Lease:
        budget = self._budget
        with budget.condition:
            if budget.closed:
                _close(envs, holding.specification.label)
                raise BackendError("this pool was closed while environments were made for a lease")
            holding.since = time.monotonic()
            holding.same_size_only = automatic and not isinstance(envs, RuleVectorEnv)
            holding.leased = weakref.ref(envs)
            holding.finalizer = weakref.finalize(envs, budget.abandoned.append, holding)
            holding.finalizer.atexit = False

        def resize(num_envs: int) -> Any:
            """Change the number of environments within the budget of the pool."""
            return self._resize_lease(holding, holding.leased and holding.leased(), num_envs, 0.0)

        # A learner that resizes its environments must stay within the budget.
        envs.resize = resize
        return Lease(self, holding, envs)

    def _resize_lease(self, holding: Holding, envs: Any, num_envs: int, timeout: float | None) -> Any:
        num_envs = checked_count("num_envs", num_envs)
        change = num_envs - envs.num_envs

        def enlarge() -> Any:
            return type(envs).resize(envs, num_envs)

        try:
            if change <= 0:
                return enlarge()
            deadline = None if timeout is None else time.monotonic() + timeout
            ticket = Ticket(holding.specification, change, growing=holding)
            _close_all(self._budget.wait(ticket, deadline).evicted)
            return self._measured(holding.specification, change, enlarge)
        finally:
            self._budget.charge(holding, envs.num_envs)

    def _take_back(self, holding: Holding, envs: Any, reusable: bool) -> None:
        vars(envs).pop("resize", None)
        holding.finalizer.detach()
        if not (reusable and not _is_broken(envs) and self._budget.keep(holding, envs)):
            _close(envs, holding.specification.label)
            self._budget.forget(holding)

    def resize(self, max_concurrent_envs: int) -> None:
        """Change the budget. Existing leases stay as they are; nothing is lent until they fit into it."""
        budget = self._budget
        with budget.condition:
            budget.most = checked_count("max_concurrent_envs", max_concurrent_envs)
            evicted = budget.evict()
            budget.condition.notify_all()
        _close_all(evicted)

    def status(self) -> PoolStatus:
        """Return what is leased, idle and requested."""
        return self._budget.status()

    @property
    def closed(self) -> bool:
        """Whether the pool was closed."""
        return self._budget.closed

    def close(self) -> None:
        """Close all environments, leased ones included; waiting requests are refused."""
        budget = self._budget
        with budget.condition:
            budget.closed = True
            idle, budget.idle = budget.idle, []
            leased = [(holding, holding.leased() if holding.leased else None) for holding in budget.leased]
            budget.condition.notify_all()
        _close_all(idle)
        for holding, envs in leased:
            if envs is not None:
                _close(envs, holding.specification.label)

    def __enter__(self) -> EnvPool:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _start(envs: Any, seed: int) -> None:
    """Start all episodes, so that environments that were used before behave like new ones."""
    envs.reset(seed=seed if isinstance(envs, RuleVectorEnv) else spread_seeds(seed, envs.num_envs))


def _reused(envs: Any, num_envs: int, seed: int) -> Any:
    """Return idle environments ready for a new lease; if they turn out to be broken, close them and return None."""
    if envs is None:
        return None
    usable = False
    try:
        if not _is_broken(envs):
            if envs.num_envs != num_envs:
                envs.resize(num_envs)
            _start(envs, seed)
            usable = not _is_broken(envs)
    except Exception as error:
        warnings.warn(f"idle environments failed and are replaced by new ones: {error}", stacklevel=3)
    finally:
        if not usable:
            _close(envs, "idle environments")
    return envs if usable else None


def _is_broken(envs: Any) -> bool:
    """Whether environments were closed, or any of them ever failed."""
    return bool(envs.closed or getattr(envs, "faults", ()) or not np.all(getattr(envs, "alive", True)))


def _close(envs: Any, label: str) -> None:
    try:
        envs.close()
    except Exception as error:  # not the fault of the caller, who needs the room
        warnings.warn(f"closing environments of {label} failed: {error}", stacklevel=3)


def _close_all(holdings: list[Holding]) -> None:
    for holding in holdings:
        _close(holding.envs, holding.specification.label)
        holding.envs = None


_shared: dict[int, EnvPool] = {}  # by process: a fork must not use its parent's environments
_shared_lock = threading.Lock()


def _close_shared(process: int) -> None:
    if process == os.getpid():
        _shared[process].close()


def shared_pool(max_concurrent_envs: int | None = None) -> EnvPool:
    """Return the one pool of this process, for trainings that share nothing else.

    The first call makes it. Later calls may leave the budget out, or change it while nothing is leased or requested.
    """
    with _shared_lock:
        pool = _shared.get(os.getpid())
        if pool is None or pool.closed:
            if max_concurrent_envs is None:
                raise ConfigError("there is no shared pool yet: give max_concurrent_envs")
            pool = _shared[os.getpid()] = EnvPool(max_concurrent_envs)
            atexit.register(_close_shared, os.getpid())
            return pool
        now = pool.status()
        if max_concurrent_envs is None or max_concurrent_envs == now.max_concurrent_envs:
            return pool
        if now.leases or now.waiting:
            raise ConfigError(
                f"max_concurrent_envs = {max_concurrent_envs}: the pool of this process has {now.max_concurrent_envs} "
                f"and is in use ({now.leased} leased). Give the same number, or change it for all with "
                f"shared_pool().resize({max_concurrent_envs})."
            )
        pool.resize(max_concurrent_envs)
        return pool
