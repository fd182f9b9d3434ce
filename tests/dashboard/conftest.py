"""A web server within the test's process, and a client that asks it as a browser, a program or a stranger would."""

from __future__ import annotations

import asyncio
import json
import math
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.runs.test_old_runs import ARCHIVE
from velodrome.dashboard.app import make_app
from velodrome.dashboard.settings import Limits, Settings
from velodrome.runs.store.rows import EvaluationRow, MetricRow, RunRecord
from velodrome.runs.store.store import open_store

TOKEN = "secret-token-of-a-test-0123456789abcdef"
HOST = "127.0.0.1:8700"
# Tests ask faster than people do; those of the bounds set their own.
LIMITS = Limits(unknown=(1e6, 1e6), known=(1e6, 1e6), writes=(1e6, 1e6))
HOSTILE = "<script>alert(1)</script>"


@dataclass(frozen=True)
class Reply:
    """What the server answered."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        return self.json["error"]["message"]


class Client:
    """Asks an application without a network in between."""

    def __init__(self, settings: Settings) -> None:
        self.runner, self.closed = asyncio.Runner(), False
        self.app = make_app(settings)
        self.site, self.live = self.app.inner.state.site, self.app.inner.state.live
        self._lifespan = self.app.inner.router.lifespan_context(self.app.inner)
        self.runner.run(self._lifespan.__aenter__())

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self.runner.run(self._lifespan.__aexit__(None, None, None))
        self.runner.close()

    def ask(self, method: str, target: str, content: Any = None, **options: Any) -> Reply:
        return self.runner.run(self.send(method, target, content, **options))

    def get(self, target: str, **options: Any) -> Any:
        """Return the JSON of a question that must be answered."""
        found = self.ask("GET", target, **options)
        assert found.status == 200, found.body
        return found.json

    def post(self, target: str, content: Any = None, **options: Any) -> Reply:
        return self.ask("POST", target, {} if content is None else content, **options)

    async def send(
        self,
        method: str,
        target: str,
        content: Any = None,
        *,
        token: str | None = TOKEN,
        headers: dict[str, str] | None = None,
        parts: list[bytes] | None = None,
        pairs: list[tuple[bytes, bytes]] | None = None,
    ) -> Reply:
        """Send one request. content: bytes as they are, anything else as JSON; parts: a body that comes in pieces."""
        body = content if isinstance(content, bytes) else b"" if content is None else json.dumps(content).encode()
        every = {"host": HOST, **({} if token is None else {"authorization": f"Bearer {token}"})}
        if method == "POST":
            every["content-type"] = "application/json"
        every |= headers or {}
        raw = [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in every.items()]
        scope = scope_of(method, target, [*raw, *(pairs or [])])
        chunks = [body] if parts is None else parts
        messages = [
            {"type": "http.request", "body": part, "more_body": place < len(chunks) - 1}
            for place, part in enumerate(chunks)
        ]
        sent: list[Any] = []
        pending = iter(messages)

        async def receive() -> Any:
            found = next(pending, None)
            if found is None:
                await asyncio.sleep(3600)
            return found

        async def send(message: Any) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
        found = {name.decode(): value.decode("latin-1") for name, value in sent[0]["headers"]}
        return Reply(sent[0]["status"], found, b"".join(message.get("body", b"") for message in sent[1:]))


def scope_of(method: str, target: str, headers: list[tuple[bytes, bytes]]) -> dict[str, Any]:
    """Return what uvicorn says of a request."""
    from urllib.parse import unquote

    path, _, query = target.partition("?")
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode("utf-8", "replace"),
        "query_string": query.encode("utf-8", "replace"),
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 40000),
        "server": ("127.0.0.1", 8700),
    }


def fill(folder: Path) -> None:
    """Write a store with some runs, one of a hostile name, whose folders are not there."""
    with open_store(folder) as store:
        for number in range(12):
            identity = f"{number:08x}"
            config = {"steps": 2000, "seed": number, "env": "trading", "evaluation": {"final_split": "test"}}
            name = HOSTILE if number == 3 else f"run{number}"
            status = "failed" if number == 5 else "finished"
            store.create_run(
                RunRecord(
                    identity,
                    name,
                    str(folder / identity),
                    "trading" if number % 2 else "cage2",
                    "ppo",
                    status,
                    config,
                    seed=number,
                    created=1e9 + number,
                    updated=1e9 + number,
                    data_hash="",
                )
            )
            rows = [MetricRow(step, "loss/policy", math.sin(step / 50) + number, 1e9) for step in range(0, 2000, 2)]
            rows += [MetricRow(1998, "time/steps_per_second", 100.0 * number, 1e9), MetricRow(7, HOSTILE, 1.0, 1e9)]
            rows += [MetricRow(1998, "loss/value", math.nan, 1e9)]
            store.add_metrics(identity, rows)
            store.add_evaluations(identity, [EvaluationRow(1998, "test", "return", number / 100, -0.1, 0.2)])


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[Client]:
    """A server over a store with some runs."""
    folder = tmp_path_factory.mktemp("served") / "runs"
    fill(folder)
    client = Client(Settings(folder, token=TOKEN, limits=LIMITS))
    yield client
    client.close()


@pytest.fixture
def serve(tmp_path) -> Iterator[Callable[..., Client]]:
    """Returns servers over an empty folder, with settings and limits of their own."""
    made: list[Client] = []

    def make(limits: dict[str, Any] | None = None, **options: Any) -> Client:
        settings = Settings(tmp_path / "runs", token=TOKEN, limits=replace(LIMITS, **(limits or {})), **options)
        made.append(Client(settings))
        return made[-1]

    yield make
    for client in made:
        client.close()


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> Path:
    """A folder of runs that were trained and evaluated once: one of an account, one of a portfolio."""
    folder = tmp_path_factory.mktemp("trained")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder / "runs"


@pytest.fixture(scope="module")
def looked_at(trained) -> Iterator[Client]:
    """A server over runs that were trained."""
    client = Client(Settings(trained, token=TOKEN, limits=LIMITS))
    yield client
    client.close()
