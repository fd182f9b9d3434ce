"""The guard in front of every page, file, stream and operation: nothing behind it is reached without the token.

In this order: is the server called by a name of its own; is it asked too often; is the token known; does a request that
changes something come from our own pages; is it of a legal size and kind.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from velodrome.dashboard.answers import Refusal, encoded
from velodrome.dashboard.login import Login
from velodrome.dashboard.settings import HOST, Limits, Settings

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

SAFE = ("GET", "HEAD")
METHODS = (*SAFE, "POST")
JSON, FORM = "application/json", "application/x-www-form-urlencoded"
# A part of a path that could mean another place: nothing here is called so, and proxies disagree about such paths.
STRANGE = re.compile(r"[\x00-\x1f\x7f\\;]|%|(?:^|/)\.\.?(?:/|$)|//")
POLICY = (
    "default-src 'none'; script-src 'self'; worker-src 'self'; style-src 'self'{style}; img-src 'self' data: blob:; "
    "font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
WRONG = "That is not the token of this server."
SESSION = "velodrome.session"  # in a scope: that the request came with a cookie


class Rates:
    """How often each address asks: a bucket of requests that fills by itself."""

    def __init__(self, rate: float, burst: float, addresses: int) -> None:
        self._rate, self._burst, self._most = rate, burst, addresses
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, address: str) -> float:
        """Count a request; return the seconds to wait, 0.0 if it may be answered."""
        now = time.monotonic()
        left, since = self._buckets.pop(address, (self._burst, now))
        left = min(self._burst, left + (now - since) * self._rate)
        self._buckets[address] = (left - 1.0 if left >= 1.0 else left, now)
        while len(self._buckets) > self._most:
            self._buckets.popitem(last=False)
        return 0.0 if left >= 1.0 else (1.0 - left) / self._rate


class Guard:
    """An ASGI application that lets through what is allowed to another."""

    def __init__(self, inner: Any, settings: Settings, login: Login) -> None:
        self.inner, self.settings, self.login = inner, settings, login
        limits: Limits = settings.limits
        self._unknown, self._known, self._writes = (
            Rates(*rate, limits.addresses) for rate in (limits.unknown, limits.known, limits.writes)
        )
        self._answering = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.inner(scope, receive, send)
        elif scope["type"] == "websocket":  # nothing here is one
            await send({"type": "websocket.close", "code": 1008})
        else:
            await self._http(Request(scope), receive, send)

    async def _http(self, request: Request, receive: Receive, send: Send) -> None:
        sent = _Sent(send)
        try:
            await self._judge(request, receive, sent)
        except Refusal as refusal:
            if not sent.begun:
                await self._refuse(request, refusal, sent)

    async def _judge(self, request: Request, receive: Receive, send: _Sent) -> None:
        limits = self.settings.limits
        if len(request.target) > limits.target:
            raise Refusal(414, f"the address has {len(request.target):,} bytes; {limits.target:,} are legal.")
        if request.header("content-length") and request.header("transfer-encoding"):
            # A proxy might see another request in the rest of the body than this server does.
            raise Refusal(400, "a request says how long it is, or comes in chunks; not both.", close=True)
        self._check_host(request)
        path = self._own_path(request)
        how = self.login.knows(request.header("authorization"), request.header("cookie"))
        rates = self._unknown if how is None else self._known
        self._check_rate(rates, request)
        if how is None:
            await self._meet(request, path, receive, send)
            return
        self._check_origin(request, how)
        if request.method not in METHODS:
            raise Refusal(405, f"{request.method[:20]}: legal are {', '.join(METHODS)}.", allow=", ".join(METHODS))
        if STRANGE.search(path):
            raise Refusal(400, "this path has parts that no page has ('..', '%', ';', a backslash or the like).")
        if path == "/login":
            await self._enter(request, path, receive, send)
            return
        if "token" in request.query and request.method == "GET":
            self._let_in_by_link(request, path)
            await self._let_in(request, path, send)
            return
        body = b""
        if request.method == "POST":
            self._check_rate(self._writes, request)
            if request.kind != JSON:
                raise Refusal(415, f"content-type {request.kind[:80]!r}: a request says what it wants as {JSON}.")
            body = await self._body(request, receive)
        if path == "/api/logout" and request.method == "POST":
            await self._page(204, "", send, cookie=self.login.clear_cookie(request.is_secure))
            return
        await self._pass_on(request, path, body, receive, send)

    # What is looked at

    def _check_host(self, request: Request) -> None:
        """Refuse to be called by a name that is not ours: a page of a stranger's could have it mean this machine."""
        name = request.host
        if not HOST.fullmatch(name) or name.lower() not in self.settings.hosts:
            raise Refusal(
                400,
                f"Host {request.header('host')[:100]!r} is no name of this server; it has "
                f"{', '.join(sorted(self.settings.hosts))}. Allow another: velodrome serve --allow-host NAME",
            )

    def _own_path(self, request: Request) -> str:
        """Return a path as the server knows it, whether a proxy left its prefix there or not."""
        prefix, path = self.settings.prefix, request.path
        if prefix and path == prefix:
            return "/"
        return path.removeprefix(prefix) if prefix and path.startswith(f"{prefix}/") else path

    def _check_rate(self, rates: Rates, request: Request) -> None:
        if wait := rates.wait(request.address):
            raise Refusal(429, f"too many requests; ask again in {wait:.1f} s.", retry_after=wait)

    def _check_origin(self, request: Request, how: str) -> None:
        """Refuse what another site's page asks for in the name of a browser that is logged in."""
        origin = request.header("origin")
        if origin and not self._is_own(origin, request):
            raise Refusal(403, f"Origin {origin[:100]!r}: only pages of this server may ask it.")
        if request.header("sec-fetch-site") in ("cross-site", "same-site") and request.method not in SAFE:
            raise Refusal(403, "a page of another site asked for this.")
        if request.method not in SAFE and how == "cookie" and not origin:
            raise Refusal(403, "a request that changes something says where it comes from (Origin), or has the token.")

    def _is_own(self, origin: str, request: Request) -> bool:
        try:
            parts = urlsplit(origin)
            name = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
        except ValueError:
            return False
        legal = parts.scheme in ("http", "https") and not (parts.path or parts.query or parts.username)
        return legal and name in self.settings.hosts and parts.netloc.lower() == request.header("host").lower()

    async def _body(self, request: Request, receive: Receive) -> bytes:
        """Read a request's body, no more of it than is legal and no longer."""
        most = self.settings.limits.body
        told = request.header("content-length")
        if told and (not told.isdecimal() or len(told) > 18 or int(told) > most):
            raise Refusal(413, f"a request has {most:,} bytes at most, and this one says {told[:20]}.")
        parts: list[bytes] = []
        try:
            async with asyncio.timeout(self.settings.limits.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Refusal(400, "the connection was closed in the middle of a request.")
                    parts.append(message.get("body", b""))
                    if sum(map(len, parts)) > most:
                        raise Refusal(413, f"a request has {most:,} bytes at most.")
                    if not message.get("more_body"):
                        return b"".join(parts)
        except TimeoutError:
            raise Refusal(408, f"the request did not come in {self.settings.limits.body_seconds:g} s.") from None

    # Who is not known

    async def _meet(self, request: Request, path: str, receive: Receive, send: _Sent) -> None:
        """Answer somebody who is not known: with the log-in page, and nothing else."""
        if path == "/login" and request.method in ("GET", "HEAD", "POST"):
            await self._enter(request, path, receive, send)
        elif request.method == "GET" and "token" in request.query:
            self._let_in_by_link(request, path)
            await self._let_in(request, path, send)
        else:
            raise Refusal(401, "log in first: open the link that velodrome serve printed, or send its token.")

    def _let_in_by_link(self, request: Request, path: str) -> None:
        self._check_origin(request, "token")
        if not self.login.is_token(request.query["token"]):
            raise Refusal(401, WRONG)

    async def _let_in(self, request: Request, path: str, send: _Sent) -> None:
        """Give the cookie, and go on to the same page without the token."""
        rest = urlencode([(name, value) for name, value in request.pairs if name != "token"])
        target = (
            self.settings.prefix
            + (quote(path, errors="replace") if not STRANGE.search(path) else "/")
            + (f"?{rest}" if rest else "")
        )
        safe = target.replace("&", "&amp;").replace('"', "%22").replace("<", "%3C")
        await self._page(200, self.login.entered(safe), send, cookie=self.login.set_cookie(request.is_secure))

    async def _enter(self, request: Request, path: str, receive: Receive, send: _Sent) -> None:
        if request.method != "POST":
            await self._page(200, self.login.page(), send)
            return
        self._check_origin(request, "token")  # a form of another site must not log anybody in
        if request.kind != FORM:
            raise Refusal(415, f"content-type {request.kind[:80]!r}: a log-in is {FORM}.")
        given = dict(parse_qsl((await self._body(request, receive)).decode("utf-8", "replace"), max_num_fields=8))
        if not self.login.is_token(given.get("token", "").strip()):
            raise Refusal(401, WRONG)
        await self._let_in(request, "/", send)

    # Answers

    async def _pass_on(self, request: Request, path: str, body: bytes, receive: Receive, send: _Sent) -> None:
        stream = path == "/api/events"  # bounded where they are made
        if not stream and self._answering >= self.settings.limits.at_once:
            raise Refusal(503, "the server is busy; ask again in a moment.", retry_after=1.0)
        scope = {**request.scope, "path": path, "raw_path": quote(path, errors="replace").encode(), "root_path": ""}
        given = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def replay() -> Message:
            return next(given, None) or await receive()

        self._answering += not stream
        try:
            await self.inner(scope, replay, send.with_headers(self._headers()))
        finally:
            self._answering -= not stream

    def _headers(self, style: str = "") -> dict[str, str]:
        return {**HEADERS, "content-security-policy": POLICY.format(style=style)}

    async def _refuse(self, request: Request, refusal: Refusal, send: _Sent) -> None:
        headers = {}
        further = {**refusal.further}
        if (wait := further.pop("retry_after", None)) is not None:
            headers["retry-after"] = str(max(1, round(wait)))
        if further.pop("close", False):
            headers["connection"] = "close"
        if allow := further.pop("allow", None):
            headers["allow"] = allow
        if refusal.status == 401:
            headers["www-authenticate"] = 'Bearer realm="velodrome"'
        wants_page = "text/html" in request.header("accept") or request.kind == FORM
        if refusal.status == 401 and wants_page:
            message = WRONG if refusal.message == WRONG else ""
            await self._page(401, self.login.page(message), send, headers)
            return
        body = encoded(Refusal(refusal.status, refusal.message, **further).content)
        await _respond(refusal.status, body, JSON, {**self._headers(), **headers, "cache-control": "no-store"}, send)

    async def _page(
        self, status: int, text: str, send: _Sent, headers: dict[str, str] | None = None, cookie: str = ""
    ) -> None:
        own = self._headers(f" 'sha256-{self.login.style_hash}'") | {"cache-control": "no-store"} | (headers or {})
        own["referrer-policy"] = "same-origin"  # without any, browsers do not say where its form comes from
        own |= {"set-cookie": cookie} if cookie else {}
        await _respond(status, text.encode(), "text/html; charset=utf-8", own, send)


class Request:
    """What the guard wants to know of a request."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.method, self.path = str(scope["method"]), str(scope["path"])
        self.target = (scope.get("raw_path") or self.path.encode()) + b"?" + scope.get("query_string", b"")
        self._headers: dict[str, str] = {}
        self._twice: set[str] = set()
        for name, value in scope["headers"]:
            known = name.decode("latin-1").lower()
            self._twice |= {known} & self._headers.keys()
            self._headers[known] = value.decode("latin-1")
        query = scope.get("query_string", b"").decode("latin-1")
        try:
            self.pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=200)
        except ValueError:
            self.pairs = []
        self.query = dict(self.pairs)

    def header(self, name: str) -> str:
        """Return a header; one that is there twice says nothing, for others might read the other one."""
        return "" if name in self._twice else self._headers.get(name, "")

    @property
    def host(self) -> str:
        """The name by which the server is called, without a port."""
        name, colon, port = self.header("host").rpartition(":")
        return name if colon and port.isdecimal() else self.header("host")

    @property
    def kind(self) -> str:
        """The kind of its body."""
        return self.header("content-type").partition(";")[0].strip().lower()

    @property
    def address(self) -> str:
        """Who asks."""
        client = self.scope.get("client")
        return str(client[0]) if client else ""

    @property
    def is_secure(self) -> bool:
        """Whether the browser speaks HTTPS, by itself or with a proxy."""
        return self.scope.get("scheme") == "https" or self.header("x-forwarded-proto") == "https"


class _Sent:
    """Sends an answer, and knows whether it has begun."""

    def __init__(self, send: Send) -> None:
        self._send, self.begun = send, False
        self._further: dict[str, str] = {}

    def with_headers(self, headers: dict[str, str]) -> _Sent:
        """Add headers to the answer that is sent."""
        self._further = headers
        return self

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
            own = [(name.lower(), value) for name, value in message.get("headers", ())]
            names = {name for name, _ in own}
            more = [(name.encode(), value.encode("latin-1", "replace")) for name, value in self._further.items()]
            message = {**message, "headers": [*own, *(pair for pair in more if pair[0] not in names)]}
        await self._send(message)


async def _respond(status: int, body: bytes, kind: str, headers: dict[str, str], send: _Sent) -> None:
    every = {"content-type": kind, "content-length": str(len(body)), **headers}
    raw = [(name.encode(), value.encode("latin-1", "replace")) for name, value in every.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
