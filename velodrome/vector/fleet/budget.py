"""The accounts of a pool: who has how many environments, who waits, which are idle, what memory they take.

Nothing here makes or closes environments; `pool.py` does that, outside the lock of this module.
"""

from __future__ import annotations

import gc
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from velodrome.errors import BackendError, ConfigError
from velodrome.vector.argument_checks import checked_count
from velodrome.vector.fleet.specification import Specification

LOOK_AGAIN = 0.2  # seconds between a waiter's checks for abandoned leases
# Seconds between a waiter's garbage collections: learners refer to themselves, so an abandoned one stays until then.
COLLECT_EVERY = 2.0


class PoolBusyError(BackendError, TimeoutError):
    """A pool has no room now; it will have some once others give environments back."""


@dataclass(frozen=True)
class LeaseStatus:
    """One lease, or a batch of idle environments."""

    env: str
    num_envs: int
    bytes: int  # as measured; without a memory_limit, those of the first of a kind include the code they loaded
    seconds: float  # since it was leased, or given back


@dataclass(frozen=True)
class PoolStatus:
    """What a pool holds. `leased + idle` exceeds `max_concurrent_envs` only after that was lowered."""

    max_concurrent_envs: int
    memory_limit: int | None  # bytes
    leased: int  # environments
    idle: int  # environments
    waiting: int  # requests
    bytes: int  # of all environments, as measured
    leases: tuple[LeaseStatus, ...]
    idle_leases: tuple[LeaseStatus, ...]  # the oldest, which is closed first, comes first


@dataclass(eq=False)
class Holding:
    """Environments of one specification, leased or idle."""

    specification: Specification
    num_envs: int  # charged to the budget: while some are made or closed, the most there are at any moment
    since: float  # seconds
    same_size_only: bool = False  # their backend and workers were chosen for this number
    envs: Any = None  # while idle
    leased: Callable[[], Any] | None = None  # a weak reference, which does not keep abandoned environments alive
    finalizer: Any = None


@dataclass(eq=False)
class Ticket:
    """A place in the queue, for new environments or for more of those that a holding has."""

    specification: Specification
    num_envs: int  # more than now
    growing: Holding | None = None


@dataclass(frozen=True)
class Grant:
    """The answer to a request: the holding that is charged, and what must be closed before anything is made."""

    holding: Holding
    reused: Any  # environments, or None
    evicted: list[Holding]


class Budget:
    """Grants requests in the order of their arrival, as soon as there is room."""

    def __init__(self, max_concurrent_envs: int, memory_limit: int | None) -> None:
        self.most = checked_count("max_concurrent_envs", max_concurrent_envs)
        self.memory_limit = None if memory_limit is None else checked_count("memory_limit", memory_limit)
        self.condition = threading.Condition()
        self.queue: deque[Ticket] = deque()
        self.leased: list[Holding] = []
        self.idle: list[Holding] = []  # oldest first
        self.closed = False
        # Garbage may be collected while this thread changes the lists above, so abandoned holdings are only noted.
        self.abandoned: deque[Holding] = deque()
        # By specification: how many environments were measured, and the bytes of one.
        self.sizes: dict[Specification, tuple[int, float]] = {}

    # Wait

    def join_again(self, ticket: Ticket, holding: Holding) -> None:
        """Put a ticket back to the front of the queue after its holding turned out to be too large."""
        with self.condition:
            self.queue.appendleft(ticket)
            self.forget(holding)

    def wait(self, ticket: Ticket, deadline: float | None) -> Grant:
        """Join the queue unless the ticket is in it, wait for its turn and for room, then leave the queue."""
        collected = time.monotonic()
        last_look = deadline is not None and deadline <= collected
        with self.condition:
            if ticket not in self.queue:
                self.queue.append(ticket)
        try:
            while True:
                with self.condition:
                    self._give_back_abandoned()
                    self._refuse_impossible(ticket)
                    if self._is_next(ticket):
                        return self._grant(ticket)
                    self._refuse_deadlock(ticket)
                now = time.monotonic()
                if last_look:
                    raise PoolBusyError(self._busy(ticket))
                last_look = deadline is not None and now >= deadline
                if last_look or now - collected >= COLLECT_EVERY:
                    # Outside the lock: closing what is collected may take a while.
                    gc.collect()
                    collected = time.monotonic()
                    continue
                with self.condition:
                    if not self._is_next(ticket) and not self.abandoned and not self.closed:
                        self.condition.wait(LOOK_AGAIN if deadline is None else min(LOOK_AGAIN, deadline - now))
        finally:
            with self.condition:
                self.queue.remove(ticket)
                self.condition.notify_all()

    def _is_next(self, ticket: Ticket) -> bool:
        """Return whether it is a ticket's turn, and there is room once everything idle is closed."""
        if self.queue[0] is not ticket or charged(self.leased) + ticket.num_envs > self.most:
            return False
        wanted = ticket.num_envs * self._bytes_each(ticket.specification)
        return self.memory_limit is None or self._bytes(self.leased) + wanted <= self.memory_limit

    def _refuse_impossible(self, ticket: Ticket) -> None:
        """Raise for a request that can never be granted, whatever others give back."""
        if self.closed:
            raise BackendError("this pool was closed; make a new one")
        total = ticket.num_envs + (ticket.growing.num_envs if ticket.growing else 0)
        if total > self.most:
            raise ConfigError(
                f"num_envs = {total}: this pool has at most {self.most} environments (max_concurrent_envs) for all "
                f"trainings together. Ask for fewer, or enlarge it with pool.resize({total})."
            )
        each = self._bytes_each(ticket.specification)
        if self.memory_limit is not None and total * each > self.memory_limit:
            raise ConfigError(
                f"num_envs = {total}: one environment of {ticket.specification.label} takes {each:,.0f} bytes as "
                f"measured, so that at most {int(self.memory_limit // each)} fit into memory_limit = "
                f"{self.memory_limit:,} bytes. Ask for fewer, or raise the limit."
            )

    def _refuse_deadlock(self, ticket: Ticket) -> None:
        """Raise if all leases would wait for each other to give something back."""
        growing = [other.growing for other in self.queue]
        if ticket.growing is not None and all(holding in growing for holding in self.leased):
            raise PoolBusyError(
                f"every lease of this pool waits to grow, so none would ever give anything back; {self._busy(ticket)}"
            )

    # Grant

    def _grant(self, ticket: Ticket) -> Grant:
        """Charge the budget, and choose what is reused and what has to go."""
        reused = None
        if ticket.growing is not None:
            holding = ticket.growing
        else:
            found = self._reusable(ticket)
            holding = Holding(ticket.specification, 0, time.monotonic())
            if found is not None:
                self.idle.remove(found)
                reused, holding.num_envs = found.envs, found.num_envs
                found.envs = None  # a lease that ended still refers to it
            self.leased.append(holding)
        before = holding.num_envs
        holding.num_envs = before + ticket.num_envs if ticket.growing else max(before, ticket.num_envs)
        evicted = self.evict()
        # Until they are closed, they exist in addition to what the holding had.
        holding.num_envs = max(holding.num_envs, before + charged(evicted))
        return Grant(holding, reused, evicted)

    def _reusable(self, ticket: Ticket) -> Holding | None:
        """Return the idle environments of the same kind whose number is nearest."""
        candidates = [
            holding
            for holding in self.idle
            if holding.specification == ticket.specification
            and (not holding.same_size_only or holding.num_envs == ticket.num_envs)
        ]
        return min(candidates, key=lambda holding: abs(holding.num_envs - ticket.num_envs), default=None)

    def evict(self) -> list[Holding]:
        """Take idle environments, the oldest first, off the budget until it suffices; the caller closes them."""
        evicted = []
        with self.condition:
            while self.idle and self._is_over():
                evicted.append(self.idle.pop(0))
            if evicted:
                self._forget_sizes()
        return evicted

    def charge(self, holding: Holding, num_envs: int) -> None:
        """Charge the environments of a holding to the budget."""
        with self.condition:
            holding.num_envs = num_envs
            self.condition.notify_all()

    def is_within_memory(self) -> bool:
        """Return whether the leased environments are within the limit."""
        with self.condition:
            return self.memory_limit is None or self._bytes(self.leased) <= self.memory_limit

    # Give back

    def keep(self, holding: Holding, envs: Any) -> bool:
        """Keep returned environments for the next lease; False if there is no room for them."""
        with self.condition:
            if self.closed or self._is_over():
                return False
            self.leased.remove(holding)
            holding.envs, holding.leased = envs, None
            holding.num_envs, holding.since = envs.num_envs, time.monotonic()
            self.idle.append(holding)
            self.condition.notify_all()
            return True

    def forget(self, holding: Holding) -> None:
        """Take a holding whose environments are closed off the budget."""
        with self.condition:
            if holding in self.leased:
                self.leased.remove(holding)
            self._forget_sizes()
            self.condition.notify_all()

    def _forget_sizes(self) -> None:
        """Drop measurements that would needlessly keep objects of the user, such as a market, alive."""
        used = {holding.specification for holding in (*self.leased, *self.idle)}
        used |= {ticket.specification for ticket in self.queue}
        self.sizes = {key: size for key, size in self.sizes.items() if key.by_value or key in used}

    def _give_back_abandoned(self) -> None:
        while self.abandoned:
            self.forget(self.abandoned.popleft())

    # Numbers

    def note_size(self, specification: Specification, count: int, grown: int) -> None:
        """Note by how many bytes memory grew for some environments; the measurement with the most of them is kept."""
        with self.condition:
            if count >= self.sizes.get(specification, (0, 0.0))[0]:
                self.sizes[specification] = (count, max(grown, 0) / count)

    def _bytes_each(self, specification: Specification) -> float:
        return self.sizes.get(specification, (0, 0.0))[1]

    def _bytes(self, holdings: list[Holding]) -> float:
        return sum(holding.num_envs * self._bytes_each(holding.specification) for holding in holdings)

    def _is_over(self) -> bool:
        everything = [*self.leased, *self.idle]
        if charged(everything) > self.most:
            return True
        return self.memory_limit is not None and self._bytes(everything) > self.memory_limit

    def room_of(self, holding: Holding) -> int:
        """Return the most environments that a holding could have now; waiting requests come first."""
        with self.condition:
            self._give_back_abandoned()
            room = 0 if self.queue else max(self.most - charged(self.leased), 0)
            each = self._bytes_each(holding.specification)
            if self.memory_limit is not None and each:
                room = min(room, int(max(self.memory_limit - self._bytes(self.leased), 0) // each))
            return holding.num_envs + room

    def _busy(self, ticket: Ticket) -> str:
        now = self.status()
        memory = "" if self.memory_limit is None else f", {now.bytes:,} of {self.memory_limit:,} bytes are taken"
        return (
            f"no room for {ticket.num_envs}{' more' if ticket.growing else ''} environments of "
            f"{ticket.specification.label}: {now.leased} of {now.max_concurrent_envs} are leased{memory}, and "
            f"{max(now.waiting - 1, 0)} other requests wait. Wait longer, ask for fewer, or enlarge the pool."
        )

    def status(self) -> PoolStatus:
        """Return what is leased, idle and requested."""
        with self.condition:
            self._give_back_abandoned()
            now = time.monotonic()

            def described(holding: Holding) -> LeaseStatus:
                return LeaseStatus(
                    holding.specification.label, holding.num_envs, int(self._bytes([holding])), now - holding.since
                )

            return PoolStatus(
                max_concurrent_envs=self.most,
                memory_limit=self.memory_limit,
                leased=charged(self.leased),
                idle=charged(self.idle),
                waiting=len(self.queue),
                bytes=int(self._bytes([*self.leased, *self.idle])),
                leases=tuple(map(described, self.leased)),
                idle_leases=tuple(map(described, self.idle)),
            )


def charged(holdings: list[Holding]) -> int:
    """Return how many environments these holdings charge to the budget."""
    return sum(holding.num_envs for holding in holdings)
