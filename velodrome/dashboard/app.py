"""The web application: pages, static files, the API and the stream of events, all of them behind the guard."""

from __future__ import annotations

import contextlib
import gzip
import json
import logging
import mimetypes
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import iterate_in_threadpool, run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from velodrome.dashboard.answers import (
    Answer,
    Download,
    Encoded,
    Endpoint,
    Question,
    Refusal,
    encoded,
    read_asked,
    refusal_of,
    tag_of,
)
from velodrome.dashboard.api import ENDPOINTS
from velodrome.dashboard.guard import JSON, Guard
from velodrome.dashboard.live import Live
from velodrome.dashboard.login import Login
from velodrome.dashboard.openapi import document
from velodrome.dashboard.settings import Settings
from velodrome.dashboard.site import Site
from velodrome.errors import VelodromeError

STATIC = Path(__file__).parent / "static"
SHELL = "index.html"
BASE = '<base href="/">'
PAGES = (
    *("/", "/runs", "/runs/{id}", "/compare", "/studies", "/studies/{name}", "/champions", "/champions/{name}"),
    *("/data", "/data/{id}", "/benchmarks", "/benchmarks/{id}", "/new", "/jobs", "/jobs/{id}", "/populations/{name}"),
)
TYPES = {".js": "text/javascript", ".mjs": "text/javascript", ".woff2": "font/woff2", ".map": "application/json"}
TEXT = ("text/", "application/json", "image/svg")
COMPRESSED = 32 * 1024  # bytes from which an answer to another machine is compressed
PART = 256 * 1024  # bytes of an answer that are sent at once
DEEP = 40  # lists and mappings in one another, in what a request says

log = logging.getLogger("velodrome.dashboard")


def make_app(settings: Settings) -> Guard:
    """Return the ASGI application of a server; nothing of it is reached without the token."""
    site = Site(settings)
    live = Live(site)
    static = StaticFiles(settings.prefix)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        import anyio.to_thread

        anyio.to_thread.current_default_thread_limiter().total_tokens = settings.limits.threads
        await live.start()
        site.start()
        try:
            yield
        finally:
            await live.stop()
            await run_in_threadpool(site.close)

    async def events(request: Request) -> Response:
        """Follow what happens, as server-sent events."""
        given = request.headers.get("last-event-id") or request.query_params.get("after") or ""
        after = int(given) if given.isdecimal() and len(given) < 19 else None
        stream = live.watch(after)
        first = await anext(stream)  # what is refused, is before anything is sent

        async def all_of_it() -> AsyncIterator[bytes]:
            yield first
            async with contextlib.aclosing(stream) as rest:
                async for part in rest:
                    yield part

        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(all_of_it(), media_type="text/event-stream", headers=headers)

    async def openapi(request: Request) -> Response:
        """Describe the API."""
        return _answer(request, encoded(document(ENDPOINTS, settings.prefix)))

    routes = [
        *(Route(path, static.shell, methods=["GET"]) for path in PAGES),
        Route("/static/{path:path}", static.file, methods=["GET"]),
        Route("/api/events", events, methods=["GET"]),
        Route("/api/openapi.json", openapi, methods=["GET"]),
        *(Route(one.path, _handler(site, one), methods=[one.method]) for one in ENDPOINTS),
    ]

    async def unknown(request: Request, error: HTTPException) -> Response:
        """Answer where nothing is: a person in the words of a page, a program as it is answered elsewhere."""
        for_people = "text/html" in request.headers.get("accept", "") and request.method == "GET"
        if error.status_code != 404 or not for_people or request.url.path.startswith(("/api/", "/static/")):
            return await _unknown(request, error)
        return await static.shell(request, 404)

    handlers: dict[Any, Any] = {Refusal: _refused, HTTPException: unknown, Exception: _failed}
    inner = Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)
    inner.router.redirect_slashes = False
    inner.state.site, inner.state.live = site, live
    login = Login(settings.token, settings.port, settings.prefix)
    return Guard(inner, settings, login)


class StaticFiles:
    """The files of the pages: a fixed list, looked up by name, so that no path leads anywhere else."""

    def __init__(self, prefix: str) -> None:
        found = (path for path in STATIC.rglob("*") if path.is_file() and not path.is_symlink())
        self._files = {path.relative_to(STATIC).as_posix(): path for path in found}
        self._prefix = prefix
        self._read: dict[str, tuple[int, bytes, str]] = {}

    def _content(self, name: str) -> tuple[bytes, str]:
        path = self._files[name]
        written = path.stat().st_mtime_ns
        known = self._read.get(name)
        if known is None or known[0] != written:
            body = path.read_bytes()
            if name == SHELL:
                body = body.replace(BASE.encode(), f'<base href="{self._prefix}/">'.encode())
            self._read[name] = known = (written, body, tag_of(body))
        return known[1], known[2]

    async def shell(self, request: Request, status: int = 200) -> Response:
        """Return the page that shows all pages."""
        if SHELL not in self._files:
            raise Refusal(404, "this installation has no pages; the API is there (api/openapi.json).")
        return await self._respond(request, SHELL, status)

    async def file(self, request: Request) -> Response:
        """Return a static file."""
        name = request.path_params["path"]
        if name not in self._files:
            raise Refusal(404, f"there is no file {name[:100]!r}.")
        return await self._respond(request, name)

    async def _respond(self, request: Request, name: str, status: int = 200) -> Response:
        body, tag = await run_in_threadpool(self._content, name)
        kind = TYPES.get(Path(name).suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"
        kind += "; charset=utf-8" if kind.startswith(TEXT) else ""
        return _answer(request, body, status, kind, tag)


def _handler(site: Site, endpoint: Endpoint) -> Any:
    """Return what answers to the requests of one operation; its work is done in a thread."""

    async def handle(request: Request) -> Response:
        if endpoint.method == "POST":
            asked = read_asked(endpoint.asked, _said(await request.body()), "body")
        else:
            pairs = request.query_params.multi_items()
            if len(pairs) != len({name for name, _ in pairs}):
                raise Refusal(422, "query: a name is given twice.")
            asked = read_asked(endpoint.asked, dict(pairs), "query")
        question = Question(dict(request.path_params), asked)

        def work() -> tuple[Any, str, bytes]:
            found = endpoint.handle(site, question)
            if isinstance(found, Download):
                return found, "", b""
            body = found.body if isinstance(found, Encoded) else encoded(_content(found))
            tag = (isinstance(found, Encoded) and found.tag) or tag_of(body)
            return found, tag, _compressed(request, body)

        try:
            found, tag, body = await run_in_threadpool(work)
        except VelodromeError as error:
            raise refusal_of(error) from error
        if isinstance(found, Download):
            name = "".join(one if one.isalnum() or one in "._-" else "_" for one in found.name)
            headers = {"content-disposition": f'attachment; filename="{name}"', "cache-control": "no-store"}
            return StreamingResponse(iterate_in_threadpool(found.parts), media_type=found.kind, headers=headers)
        status = found.status if isinstance(found, Answer) else endpoint.status
        return _answer(request, body, status, tag=tag)

    handle.__name__ = endpoint.handle.__name__
    return handle


def _content(found: Any) -> Any:
    return found.content if isinstance(found, Answer) else found


def _said(body: bytes) -> dict[str, Any]:
    """Return what the body of a request says; only an object is legal."""
    if not body.strip():
        return {}
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"body: not JSON ({str(error)[:100]}).") from None
    if not isinstance(found, dict):
        raise Refusal(422, "body: an object is legal, such as {}.")
    if _depth(found) > DEEP:
        raise Refusal(422, f"body: lists and objects are nested more than {DEEP} deep.")
    return found


def _depth(value: Any, depth: int = 1) -> int:
    """Return how deep lists and mappings are in one another, as far as that is looked at."""
    if depth > DEEP or not isinstance(value, dict | list):
        return depth
    inner = value.values() if isinstance(value, dict) else value
    return max((_depth(one, depth + 1) for one in inner), default=depth)


def _compressed(request: Request, body: bytes) -> bytes:
    """Return an answer compressed if it is long, goes to another machine and may be."""
    here = request.client is not None and request.client.host in ("127.0.0.1", "::1")
    may = "gzip" in request.headers.get("accept-encoding", "")
    return gzip.compress(body, 1) if may and not here and len(body) >= COMPRESSED else body


def _answer(request: Request, body: bytes, status: int = 200, kind: str = JSON, tag: str = "") -> Response:
    """Return an answer that a browser may keep, but asks for again; what it has already is not sent."""
    tag = tag or tag_of(body)
    headers = {"etag": tag, "cache-control": "private, no-cache", "vary": "accept-encoding"}
    if request.method in ("GET", "HEAD") and status == 200 and request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    if body[:2] == b"\x1f\x8b":
        headers["content-encoding"] = "gzip"
    if len(body) <= PART:
        return Response(body, status, headers, kind)
    return StreamingResponse(_parts(body), status, {**headers, "content-length": str(len(body))}, kind)


async def _parts(body: bytes) -> AsyncIterator[bytes]:
    """Yield a long answer in parts: the next one is copied when the last was taken, however many wait."""
    for begin in range(0, len(body), PART):
        yield body[begin : begin + PART]


async def _refused(request: Request, refusal: Refusal) -> Response:
    wait = refusal.further.pop("retry_after", None)
    headers = {"cache-control": "no-store", **({"retry-after": str(max(1, round(wait)))} if wait else {})}
    return Response(encoded(refusal.content), refusal.status, headers, JSON)


async def _unknown(request: Request, error: HTTPException) -> Response:
    messages = {404: "there is nothing at this address.", 405: "this address does not take that method."}
    message = messages.get(error.status_code, str(error.detail))
    allow = (error.headers or {}).get("Allow")
    response = await _refused(request, Refusal(error.status_code, message))
    if allow:
        response.headers["allow"] = allow
    return response


async def _failed(request: Request, error: Exception) -> Response:
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return await _refused(request, Refusal(500, "the server met an error; what it printed says more."))
