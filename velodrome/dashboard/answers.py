"""Questions and answers of the API: routes with what they take, plain values as JSON, and what is refused."""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from velodrome.errors import ChampionError, ConfigError, JobError, RunError, StoreError, VelodromeError, sentence

MOST_POINTS = 20_000  # of one curve


class Refusal(Exception):
    """A request that is not done: the status, and a sentence for people."""

    def __init__(self, status: int, message: str, **further: Any) -> None:
        super().__init__(message)
        self.status, self.message, self.further = status, message, further

    @property
    def content(self) -> dict[str, Any]:
        """What the answer says."""
        return {"error": {"status": self.status, "message": self.message}, **self.further}


# What is wrong, if an operation refuses it by itself: the request, the state of things, or the store.
STATUS = ((StoreError, 503), (JobError, 409), (ChampionError, 409), (RunError, 409), (ConfigError, 422))


def refusal_of(error: VelodromeError) -> Refusal:
    """Return what to answer to an error that is meant for people."""
    status = next((number for kind, number in STATUS if isinstance(error, kind)), 500)
    return Refusal(status, sentence(error))


class Asked(BaseModel):
    """What a request may say, beside its path; anything else is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Page(Asked):
    """A part of a list."""

    offset: int = Field(0, ge=0, le=10_000_000, description="entries to leave out at the beginning")
    limit: int = Field(100, ge=1, le=1000, description="entries to return at most")


class Stretch(Asked):
    """A part of a curve."""

    points: int = Field(1000, ge=2, le=MOST_POINTS, description="points of a curve at most; more are thinned")
    begin: float | None = Field(None, alias="from", allow_inf_nan=False, description="where it begins, in units of x")
    end: float | None = Field(None, alias="to", allow_inf_nan=False, description="where it ends")


class Nothing(Asked):
    """Nothing more is said."""


Query = TypeVar("Query", bound=Asked)


@dataclass(frozen=True)
class Question(Generic[Query]):
    """A request: the names in its path, and what else it says."""

    path: Mapping[str, str]
    asked: Query


@dataclass(frozen=True)
class Answer:
    """Plain values with a status of their own."""

    content: Any
    status: int = 200


@dataclass(frozen=True)
class Encoded:
    """JSON that was written before, and what tells it from another, if that is known."""

    body: bytes
    tag: str = ""


@dataclass(frozen=True)
class Download:
    """A file that is written while it is sent."""

    name: str
    parts: Iterator[bytes]
    kind: str = "text/csv; charset=utf-8"


@dataclass(frozen=True)
class Endpoint:
    """One operation of the API."""

    method: str
    path: str
    handle: Callable[[Any, Question[Any]], Any]
    asked: type[Asked] = Nothing
    status: int = 200

    @property
    def summary(self) -> str:
        """What it does, in a line."""
        return (self.handle.__doc__ or "").strip().partition("\n")[0]


@dataclass
class Routes:
    """The operations of one part of the API, in the order of their declaration."""

    endpoints: list[Endpoint] = field(default_factory=list)

    def get(self, path: str, asked: type[Asked] = Nothing) -> Callable[[Callable], Callable]:
        """Declare a question."""
        return self._add("GET", path, asked, 200)

    def post(self, path: str, asked: type[Asked] = Nothing, status: int = 200) -> Callable[[Callable], Callable]:
        """Declare something that changes the state of things."""
        return self._add("POST", path, asked, status)

    def _add(self, method: str, path: str, asked: type[Asked], status: int) -> Callable[[Callable], Callable]:
        def add(handle: Callable) -> Callable:
            self.endpoints.append(Endpoint(method, path, handle, asked, status))
            return handle

        return add


def read_asked(kind: type[Query], given: Mapping[str, Any], what: str) -> Query:
    """Return what a request says, or refuse it with what is legal. what: 'query' or 'body'."""
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        name = ".".join(map(str, first["loc"])) or what
        legal = ", ".join(each.alias or own for own, each in kind.model_fields.items()) or "nothing"
        raise Refusal(422, f"{what} {name[:80]!r}: {sentence(first['msg'])} Legal: {legal}.") from None


def plain(value: Any) -> Any:
    """Return a value as JSON can write it: what is not finite is nothing."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(one) for one in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    return plain(value.item()) if isinstance(value, np.generic) else value


def encoded(content: Any) -> bytes:
    """Return plain values as JSON; a second look at them is taken only where they are not finite, or not plain."""
    write = functools.partial(json.dumps, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    try:
        text = write(content)
    except (ValueError, TypeError):
        text = write(plain(content))
    return text.encode("utf-8", "replace")


def tag_of(body: bytes) -> str:
    """Return what tells an answer from another."""
    return f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
