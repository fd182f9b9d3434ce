"""EnvPool in any order of asking, growing and giving back: the budget holds, and who asked first gets first."""

from __future__ import annotations

from typing import Any

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from tests.vector.fleet.pools import DummyPool, Request, eventually
from velodrome.errors import BackendError, ConfigError
from velodrome.vector.fleet.pool import PoolBusyError


class PoolMachine(RuleBasedStateMachine):
    """Any order of requests, returns, losses and changes of the budget, against a model of the queue."""

    requests = Bundle("requests")

    def __init__(self) -> None:
        super().__init__()
        self.pool = DummyPool(6)
        self.most = self.highest = 6
        self.waiting: list[Request] = []
        self.out: list[Request] = []
        self.broken: list[Any] = []

    def leased(self) -> int:
        return sum(request.num_envs for request in self.out)

    def settle(self) -> None:
        """Grant in the model what fits, head first, and wait until the pool has done the same."""
        for request in [request for request in self.waiting if request.num_envs > self.most]:
            self.waiting.remove(request)
            assert eventually(lambda request=request: request.done)
            assert isinstance(request.error, ConfigError)
        while self.waiting and self.leased() + self.waiting[0].num_envs <= self.most:
            request = self.waiting.pop(0)
            self.out.append(request)
            assert eventually(lambda request=request: request.done)
            assert request.lease is not None, request.error
            assert request.lease.envs.kind == request.kind
            assert request.lease.num_envs == request.num_envs
            assert not request.lease.envs.closed
            assert not self.is_broken(request)
        assert eventually(lambda: self.pool.status().waiting == len(self.waiting))
        assert all(not request.done for request in self.waiting)

    @rule(target=requests, kind=st.sampled_from("ab"), num_envs=st.integers(1, 7))
    def ask(self, kind: str, num_envs: int) -> Request:
        request = Request(self.pool, kind, num_envs)
        self.waiting.append(request)
        # The order of asking has to be that of the model.
        assert eventually(lambda: request.done or self.pool.status().waiting == len(self.waiting))
        self.settle()
        return request

    @rule(kind=st.sampled_from("ab"), num_envs=st.integers(1, 6))
    def ask_without_patience(self, kind: str, num_envs: int) -> None:
        fits = not self.waiting and self.leased() + num_envs <= self.most
        try:
            self.pool.lease(kind, num_envs, timeout=0).release()
            assert fits
        except PoolBusyError:
            assert not fits
        except ConfigError:
            assert num_envs > self.most

    @rule(request=consumes(requests))
    def give_back(self, request: Request) -> None:
        if request in self.out:
            assert request.lease is not None
            self.out.remove(request)
            request.lease.release()
            request.lease.release()
            self.settle()

    @rule(request=consumes(requests))
    def forget(self, request: Request) -> None:
        if request in self.out:
            self.out.remove(request)
            assert request.lease is not None
            request.lease.envs.close()  # what dies with a real environment
            for keeper in (self.pool.census.made, self.broken):
                keeper[:] = [envs for envs in keeper if envs is not request.lease.envs]
            request.lease = None
            self.settle()

    @rule(request=requests, closed=st.booleans())
    def fail(self, request: Request, closed: bool) -> None:
        if request in self.out:
            assert request.lease is not None
            envs = request.lease.envs
            envs.close() if closed else envs.faults.append("it broke")
            if not self.is_broken(request):
                self.broken.append(envs)

    def is_broken(self, request: Request) -> bool:
        return request.lease is not None and any(request.lease._envs is broken for broken in self.broken)

    @rule(request=requests, num_envs=st.integers(1, 7), through_envs=st.booleans())
    def resize_lease(self, request: Request, num_envs: int, through_envs: bool) -> None:
        if request not in self.out or self.is_broken(request):
            return
        assert request.lease is not None
        change = num_envs - request.num_envs
        fits = change <= 0 or (not self.waiting and self.leased() + change <= self.most)
        assert (request.lease.most_envs >= num_envs) == fits or change <= 0
        try:
            resize = request.lease.envs.resize if through_envs else request.lease.resize
            assert resize(num_envs) == f"observations of {num_envs}"
            assert fits
            request.num_envs = num_envs
        except (PoolBusyError, ConfigError):
            assert not fits
        assert request.lease.num_envs == request.num_envs
        self.settle()

    @rule(most=st.integers(1, 8))
    def change_the_budget(self, most: int) -> None:
        self.most, self.highest = most, max(self.highest, most)
        self.pool.resize(most)
        self.settle()

    @invariant()
    def the_budget_is_kept(self) -> None:
        status = self.pool.status()
        assert status.leased == self.leased() == sum(lease.num_envs for lease in status.leases)
        assert status.leased + status.idle <= max(self.most, status.leased)
        assert self.pool.census.most <= self.highest
        broken = sum(envs.num_envs for envs in self.broken if envs.closed and self.is_out(envs))
        assert self.pool.census.now == status.leased + status.idle - broken

    def is_out(self, envs: Any) -> bool:
        return any(request.lease is not None and request.lease._envs is envs for request in self.out)

    def teardown(self) -> None:
        self.pool.close()
        for request in (*self.waiting, *self.out):
            assert eventually(lambda request=request: request.done)
        assert all(isinstance(request.error, BackendError) for request in self.waiting)
        assert self.pool.census.now == 0


TestPoolMachine = PoolMachine.TestCase
# Not made smaller: every try of a failing order waits for what never comes.
TestPoolMachine.settings = settings(max_examples=40, stateful_step_count=25, phases=[Phase.generate])
