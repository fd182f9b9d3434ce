"""Who is let in, and what becomes of requests that nobody should make: refused or bounded, and the server lives."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import stat
import subprocess
import sys
from http.cookies import SimpleCookie

import pytest

from tests.dashboard.conftest import HOST, HOSTILE, TOKEN, scope_of
from velodrome.dashboard import login
from velodrome.dashboard.app import PAGES
from velodrome.dashboard.settings import Settings
from velodrome.errors import ConfigError

METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PROPFIND")
OWN = {"origin": f"http://{HOST}"}


def routes_of(client) -> list[str]:
    """Every path that the application knows, with something in place of its names, and some that it does not."""
    known = [re.sub(r"{[^}]*}", "00000001", route.path) for route in client.app.inner.routes]
    assert {"/static/00000001", "/api/events", "/api/jobs", "/runs/00000001"} <= set(known)
    return [*known, "/nothing", "/static/", "/static", "/favicon.ico", "/api", "/api/", "/healthz", "/api/logout"]


def test_every_route_and_every_method_is_refused_without_the_token(served):
    for path in routes_of(served):
        for method in METHODS:
            found = served.ask(method, path, token=None)
            assert found.status == 401, (method, path, found.status)
            assert b"runs" not in found.body.lower() or b"log in" in found.body
    page = served.ask("GET", "/login", token=None)
    assert page.status == 200
    assert b"<form" in page.body
    assert served.ask("PUT", "/login", token=None).status == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer wrong"},
        {"authorization": f"Bearer {TOKEN[:-1]}"},
        {"authorization": f"Bearer {TOKEN}x"},
        {"authorization": f"Basic {TOKEN}"},
        {"authorization": TOKEN},
        {"authorization": "Bearer"},
        {"cookie": f"velodrome_8700={TOKEN}"},
        {"cookie": "velodrome_8700="},
        {"cookie": 'velodrome_8700="; other=1'},
        {"authorization": "Bearer \xff\xfe"},
    ],
)
def test_a_wrong_token_or_cookie_lets_nobody_in(served, headers):
    assert served.ask("GET", "/api/overview", token=None, headers=headers).status == 401


def cookie_of(client, **options) -> str:
    """Log in by the link, and return the cookie as a browser sends it back."""
    found = client.ask("GET", f"/?token={TOKEN}", token=None, **options)
    assert found.status == 200
    held = next(iter(SimpleCookie(found.headers["set-cookie"]).items()))
    return f"{held[0]}={held[1].value}"


def test_the_link_gives_a_cookie_that_scripts_cannot_read_and_other_sites_cannot_use(served):
    found = served.ask("GET", f"/runs?q=a&token={TOKEN}", token=None, headers={"accept": "text/html"})
    cookie = found.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= {part.strip() for part in cookie.split(";")}
    assert TOKEN not in cookie
    assert TOKEN.encode() not in found.body
    assert b'url=/runs?q=a"' in found.body
    assert served.ask("GET", "/api/runs", token=None, headers={"cookie": cookie_of(served)}).status == 200
    wrong = served.ask("GET", "/?token=wrong", token=None, headers={"accept": "text/html"})
    assert wrong.status == 401
    assert "set-cookie" not in wrong.headers
    assert b"not the token" in wrong.body


def test_the_form_logs_in_and_out(served):
    form = {"content-type": "application/x-www-form-urlencoded", **OWN}
    right = served.ask("POST", "/login", f"token={TOKEN}".encode(), token=None, headers=form)
    assert right.status == 200
    assert "HttpOnly" in right.headers["set-cookie"]
    wrong = served.ask("POST", "/login", b"token=wrong", token=None, headers=form)
    assert wrong.status == 401
    elsewhere = {**form, "origin": "http://evil.example"}
    assert served.ask("POST", "/login", f"token={TOKEN}".encode(), token=None, headers=elsewhere).status == 403
    out = served.post("/api/logout", token=None, headers={"cookie": cookie_of(served), **OWN})
    assert out.status == 204
    assert "Max-Age=0" in out.headers["set-cookie"]


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8700",
        "127.0.0.1.evil.example",
        "localhost.evil.example:8700",
        "",
        "127.0.0.1@evil",
    ],
)
def test_a_name_that_is_not_the_servers_is_refused(served, host):
    found = served.ask("GET", "/api/overview", headers={"host": host})
    assert found.status == 400
    assert "no name of this server" in found.error


def test_a_host_that_is_there_twice_is_refused(served):
    found = served.ask("GET", "/api/overview", pairs=[(b"host", b"evil.example")])
    assert found.status == 400


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:8700", "LOCALHOST:1234", "[::1]:8700"])
def test_the_servers_own_names_are_let_through(served, host):
    assert served.ask("GET", "/api/whoami", headers={"host": host}).status == 200


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "https://127.0.0.1:9999",
        "null",
        f"http://{HOST}.evil.example",
        f"http://evil@{HOST}/",
        "http://localhost:8700",
        "file://",
        "http://[",
    ],
)
def test_other_sites_cannot_ask_in_the_name_of_a_browser_that_is_logged_in(served, origin):
    headers = {"cookie": cookie_of(served), "origin": origin}
    for method, path in (("POST", "/api/drain"), ("GET", "/api/events"), ("GET", "/api/runs")):
        assert served.ask(method, path, token=None, headers=headers).status == 403


def test_a_change_by_cookie_needs_an_origin(served):
    cookie = {"cookie": cookie_of(served)}
    assert served.post("/api/config/check", token=None, headers=cookie).status == 403
    crossed = {**cookie, **OWN, "sec-fetch-site": "cross-site"}
    assert served.post("/api/config/check", token=None, headers=crossed).status == 403
    assert served.post("/api/config/check", token=None, headers={**cookie, **OWN}).status == 200
    assert served.post("/api/config/check").status == 200  # a program with the token is no browser


SECRETS = ("etc/passwd", "login.html", "app.py", "velodrome.db", "index.html")


@pytest.mark.parametrize(
    "up", ["../", "..%2f", "%2e%2e/", "%2e%2e%2f", "%252e%252e%252f", "..;/", "..\\", "..%5c", "./"]
)
@pytest.mark.parametrize("mount", ["/static/", "/api/runs/", "/api/data/", "/champions/"])
def test_no_path_leads_out_of_the_static_files(served, mount, up):
    for secret in SECRETS:
        for depth in (1, 3, 8):
            found = served.ask("GET", f"{mount}{up * depth}{secret}")
            assert found.status in (400, 404), (mount, up, secret, found.status)
            assert b"root:" not in found.body


@pytest.mark.parametrize(
    "path", ["/static//etc/passwd", "/static/%00", "/static/a%0d%0ab", "//evil.example/", "/static/."]
)
def test_strange_paths_are_refused(served, path):
    assert served.ask("GET", path).status in (400, 404)


def test_names_from_data_are_text_never_markup(served):
    for path in ("/api/runs", "/api/runs/00000003", f"/api/metrics?runs=00000003&names={HOSTILE.replace('/', '%2F')}"):
        found = served.ask("GET", path)
        assert found.status == 200
        assert HOSTILE in found.body.decode()
        assert found.headers["content-type"].startswith("application/json")
        assert found.headers["x-content-type-options"] == "nosniff"
    file = served.ask("GET", "/api/metrics.csv?runs=00000003")
    assert file.headers["content-disposition"].startswith("attachment")
    assert "<" not in file.headers["content-disposition"]
    unknown = served.ask("GET", f"/api/studies/{HOSTILE.replace('/', '_')}", headers={"accept": "text/html"})
    assert unknown.headers["content-type"].startswith("application/json")
    token = served.ask("GET", f"/?x={HOSTILE}&token={TOKEN}", token=None).body
    assert b"<script" not in token


def test_every_answer_has_a_strict_policy(served):
    for path, token in (("/api/overview", TOKEN), ("/api/overview", None), ("/login", None), ("/nothing", TOKEN)):
        policy = served.ask("GET", path, token=token).headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy


# Sizes, rates and kinds


def test_a_body_that_is_too_long_is_refused_before_it_is_read(served):
    said = served.post("/api/jobs", b"{}", headers={"content-length": str(10**9)})
    assert said.status == 413
    silent = served.ask("POST", "/api/jobs", parts=[b" " * 100_000] * 4)
    assert silent.status == 413
    assert served.post("/api/jobs", b"{}", headers={"content-length": "-1"}).status == 413
    assert served.ask("GET", f"/api/runs?q={'a' * 20_000}").status == 414


def test_a_request_with_two_ends_is_refused_and_its_connection_closed(served):
    both = {"content-length": "4", "transfer-encoding": "chunked"}
    found = served.post("/api/jobs", b"{}", headers=both)
    assert found.status == 400
    assert found.headers["connection"] == "close"


def test_a_body_that_does_not_come_is_not_waited_for(serve):
    client = serve({"body_seconds": 0.05})
    slow = client.ask("POST", "/api/config/check", parts=[])
    assert slow.status == 408


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"\xff\xfe", 400),
        (b"[]", 422),
        (b"null", 422),
        (b'"text"', 422),
        (b'{"unknown": 1}', 422),
        (b'{"settings": 7}', 422),
        (b'{"priority": "high"}', 422),
        (b'{"settings": ' + b"[" * 100 + b"]" * 100 + b"}", 422),
        (b"[" * 50_000, 400),
        (b'{"preset": "../../etc/passwd"}', 422),
        (b'{"preset": "/etc/passwd"}', 422),
    ],
)
def test_requests_that_are_not_legal_are_told_why(served, body, status):
    found = served.post("/api/jobs", body)
    assert found.status == status
    assert found.error
    assert served.get("/api/jobs")["total"] == 0


def test_other_kinds_of_bodies_are_refused(served):
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        assert served.post("/api/drain", headers={"content-type": kind}).status == 415


def test_rates_are_bounded(serve):
    client = serve({"unknown": (1.0, 5.0), "known": (1.0, 20.0), "writes": (1.0, 3.0)})
    strangers = [client.ask("GET", "/api/runs", token=None) for _ in range(8)]
    assert [found.status for found in strangers] == [401] * 5 + [429] * 3
    assert int(strangers[-1].headers["retry-after"]) >= 1
    written = [client.post("/api/config/check").status for _ in range(5)]
    assert written == [200] * 3 + [429] * 2
    statuses = [client.ask("GET", "/api/whoami").status for _ in range(20)]
    assert statuses.count(429) == 5


def test_no_more_is_answered_at_once_than_there_may_be(serve):
    client = serve({"at_once": 2})

    async def many():
        return await asyncio.gather(*(client.send("GET", "/api/runs") for _ in range(10)))

    statuses = [found.status for found in client.runner.run(many())]
    assert statuses.count(503) == 8
    assert client.ask("GET", "/api/runs").status == 200


def test_ten_thousand_malformed_requests_and_the_server_lives(served):
    """Whatever comes, the answer is a refusal or a result, never a failure, and nothing is changed."""
    draw = random.Random(0)
    paths = routes_of(served)
    junk = ["", "0", "-1", "1e999", "NaN", "null", "'", '"', "%00", "../", "00000001", "\ud800", "𝕏", "a" * 300, "[]"]
    junk += [
        HOSTILE,
        "1;DROP TABLE runs",
        "' OR 1=1 --",
        "${7*7}",
        "{{7*7}}",
        "%s%n",
        "00000001,00000002",
        ",,,",
        "\x7f",
    ]
    names = ["runs", "names", "points", "from", "to", "limit", "offset", "sort", "q", "key", "symbol", "timeframe"]
    names += ["after", "before", "env", "status", "token2", "x"]
    before = served.get("/api/runs")
    served.app.inner.state.live.site.machine.close()

    async def one() -> int:
        path = draw.choice(paths)
        if draw.random() < 0.3:
            path = path.replace("00000001", draw.choice(junk)).replace("?", "")
        if draw.random() < 0.1:
            path += draw.choice(["/", "//", "/..", "%", "\\", ";a=b", draw.choice(junk)])
        query = "&".join(f"{draw.choice(names)}={draw.choice(junk)}" for _ in range(draw.randrange(4)))
        method = draw.choice(["GET", "GET", "GET", "POST", draw.choice(METHODS)])
        if path.startswith("/api/events"):  # one that is let through does not end
            method = "POST"
        if method == "POST" and path.rstrip("/").endswith(("evaluate", "promote", "drain")):
            method = "GET"
        body = draw.choice([b"", b"{}", b"{", b"[]", bytes(draw.randrange(256) for _ in range(20))])
        if draw.random() < 0.3:
            body = json.dumps({draw.choice(names): draw.choice(junk), "settings": {draw.choice(junk): 1}}).encode()
        headers = {draw.choice(["accept", "range", "if-none-match", "cookie", "x-forwarded-for", "expect"]): "\xffjunk"}
        token = TOKEN if draw.random() < 0.5 else draw.choice([None, "wrong", "\xff"])
        found = await served.send(method, f"{path}?{query}" if query else path, body, token=token, headers=headers)
        return found.status

    async def all_of_them() -> set[int]:
        return {await one() for _ in range(10_000)}

    seen = served.runner.run(all_of_them())
    assert max(seen) < 500, seen
    assert {200, 400, 401, 404, 405, 422} <= seen
    assert served.get("/api/runs")["runs"] == before["runs"]
    assert served.get("/api/jobs")["total"] == 0


# Streams


class Stream:
    """An open connection for events."""

    def __init__(self, client, **headers: str) -> None:
        self.client, self.messages = client, []
        self.gone = asyncio.Event()
        raw = {"host": HOST, "authorization": f"Bearer {TOKEN}", **headers}
        pairs = [(name.encode(), value.encode()) for name, value in raw.items()]
        self._scope = scope_of("GET", "/api/events", pairs)
        self.task = asyncio.create_task(client.app(self._scope, self._receive, self._send))

    async def _receive(self):
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message):
        self.messages.append(message)

    @property
    def status(self) -> int | None:
        return self.messages[0]["status"] if self.messages else None

    @property
    def text(self) -> str:
        return b"".join(message.get("body", b"") for message in self.messages[1:]).decode()

    async def until(self, words: str) -> None:
        async with asyncio.timeout(30.0):
            while words not in self.text:
                await asyncio.sleep(0.01)

    async def close(self) -> None:
        self.gone.set()
        await asyncio.wait([self.task], timeout=10.0)


def test_a_thousand_streams_are_bounded_and_their_places_come_free(serve):
    client = serve({"streams": 50})

    async def open_all() -> None:
        streams = [Stream(client) for _ in range(1000)]
        async with asyncio.timeout(60.0):
            while any(stream.status is None for stream in streams):
                await asyncio.sleep(0.02)
        statuses = [stream.status for stream in streams]
        assert statuses.count(200) == 50
        assert statuses.count(503) == 950
        assert (await client.send("GET", "/api/whoami")).status == 200
        refused = next(stream for stream in streams if stream.status == 503)
        assert "close some tabs" in refused.text
        await asyncio.gather(*(stream.close() for stream in streams))
        assert client.live.readers == 0
        again = Stream(client)
        await again.until("event: hello")
        await again.close()

    client.runner.run(open_all())


def test_who_reads_slowly_loses_events_and_is_told(serve):
    client = serve({"queued_events": 4})

    async def lose() -> None:
        stream = Stream(client)
        await stream.until("event: hello")
        for number in range(20):
            client.live._send(f"event: test\ndata: {number}\n\n".encode())
        await stream.until("event: resync")
        assert stream.text.count("event: test") == 4
        await stream.close()

    client.runner.run(lose())


def test_a_browser_that_was_away_is_told_what_it_missed(serve):
    client = serve()
    job = client.post("/api/jobs", {"preset": "smoke", "settings": {"steps": 1024}}).json["job"]

    async def come_back() -> None:
        stream = Stream(client, **{"last-event-id": "0"})
        await stream.until("event: happened")
        assert job["id"] in stream.text
        await stream.close()

    client.runner.run(come_back())


# What a browser may not start


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"env": "antigravity:anything"}, "names code"),
        ({"network.kind": "antigravity:Network"}, "names code"),
        ({"market.source": "/etc"}, "from a browser only prices"),
        ({"market.source": "../../../../etc/passwd"}, "from a browser only prices"),
        ({"logging.folder": "/tmp/elsewhere"}, "goes where the queue is"),
        ({"logging.store": "sqlite:////tmp/elsewhere.db"}, "goes where the queue is"),
        ({"store": "sqlite:////tmp/elsewhere.db"}, "goes where the queue is"),
        ({"steps": "!!python/object/apply:os.system [true]"}, ""),
    ],
)
def test_settings_that_reach_outside_are_refused(served, settings, told):
    for path in ("/api/jobs", "/api/config/check"):
        found = served.post(path, {"settings": settings})
        problems = found.json["problems"]
        assert told in problems[0]["message"]
        assert found.status == (422 if path == "/api/jobs" else 200)
    assert "antigravity" not in sys.modules
    assert served.get("/api/jobs")["total"] == 0


def test_a_link_in_a_runs_folder_does_not_show_other_files(serve, tmp_path):
    from velodrome.runs.store.rows import RunRecord

    client = serve()
    folder = tmp_path / "runs" / "stranger"
    folder.mkdir()
    secret = tmp_path / "secret.txt"
    secret.write_text("the secret")
    (folder / "log.txt").symlink_to(secret)
    (folder / "evaluation").mkdir()
    (folder / "evaluation" / "test-best-1.json").symlink_to(secret)
    (folder / "evaluation" / "official-best.json").symlink_to(secret)
    client.site.store.create_run(RunRecord("abcdef01", "stranger", str(folder), "trading", "ppo", "finished"))
    client.site.index._looked = -1e9
    assert client.ask("GET", "/api/runs/abcdef01/log").status == 403
    assert client.ask("GET", "/api/runs/abcdef01/evaluation").status == 404
    assert b"secret" not in client.ask("GET", "/api/runs/abcdef01").body


def test_the_web_process_loads_no_model_and_no_torch(tmp_path):
    program = (
        "import sys, pathlib, pickle\n"
        "from velodrome.dashboard.app import make_app\n"
        "from velodrome.dashboard.settings import Settings\n"
        "import velodrome.tune.view, velodrome.tune.listing, velodrome.evaluation.result, velodrome.tune.paper.view\n"
        f"make_app(Settings(pathlib.Path({str(tmp_path)!r}), token='t' * 40))\n"
        "print('torch' in sys.modules, 'safetensors' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "False"]


# The token and the address


@pytest.fixture
def state(tmp_path, monkeypatch):
    """A state folder of the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv(login.VARIABLE, raising=False)
    return tmp_path / "state"


def test_the_token_is_kept_where_only_its_user_can_read_it(state):
    token = login.own_token()
    assert len(token) >= 43
    assert login.own_token() == token
    assert stat.S_IMODE(os.stat(login.token_file()).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(login.token_file().parent).st_mode) == 0o700


def test_a_token_that_others_could_have_read_is_replaced(state):
    token = login.own_token()
    login.token_file().chmod(0o644)
    assert login.own_token() != token
    assert stat.S_IMODE(os.stat(login.token_file()).st_mode) == 0o600


def test_a_token_in_a_folder_of_others_is_refused(state):
    login.own_token()
    login.token_file().parent.chmod(0o777)
    with pytest.raises(ConfigError, match="keeps others out"):
        login.own_token()


def test_the_environment_may_give_the_token(state, monkeypatch):
    monkeypatch.setenv(login.VARIABLE, "short")
    with pytest.raises(ConfigError, match="32 to 200"):
        login.own_token()
    monkeypatch.setenv(login.VARIABLE, TOKEN)
    assert login.own_token() == TOKEN


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "example.org"])
def test_other_addresses_only_when_asked_for(host):
    with pytest.raises(ConfigError, match="--allow-remote"):
        Settings(host=host, token=TOKEN)
    assert Settings(host=host, token=TOKEN, remote=True).host == host


@pytest.mark.parametrize(
    "options",
    [{"prefix": "/a/"}, {"prefix": "a"}, {"prefix": '/"><script>'}, {"port": 70_000}, {"allowed_hosts": ("a b",)}],
)
def test_settings_that_are_no_address_are_refused(options):
    with pytest.raises(ConfigError):
        Settings(token=TOKEN, **options)


def test_a_proxys_prefix_and_name_are_known(serve):
    client = serve(prefix="/velodrome", allowed_hosts=("trainer.example.org",))
    proxied = {"host": "trainer.example.org"}
    for path in ("/velodrome/api/whoami", "/api/whoami"):  # a proxy may leave the prefix there or not
        assert client.ask("GET", path, headers=proxied).json["prefix"] == "/velodrome"
    assert client.ask("GET", "/velodromeapi/whoami", headers=proxied).status == 404
    secure = {**proxied, "x-forwarded-proto": "https"}
    cookie = client.ask("GET", f"/velodrome/?token={TOKEN}", token=None, headers=secure).headers["set-cookie"]
    assert "Path=/velodrome/" in cookie
    assert "; Secure" in cookie
    assert b'action="/velodrome/login"' in client.ask("GET", "/velodrome/login", token=None, headers=proxied).body
    elsewhere = {**proxied, "cookie": cookie.partition(";")[0], "origin": "https://trainer.example.org"}
    assert client.post("/velodrome/api/config/check", token=None, headers=elsewhere).status == 200


def test_pages_are_declared(served):
    assert {route.path for route in served.app.inner.routes} >= set(PAGES)


def test_a_websocket_is_closed(served):
    sent = []

    async def connect() -> None:
        async def send(message) -> None:
            sent.append(message)

        scope = {**scope_of("GET", "/api/events", []), "type": "websocket"}
        await served.app(scope, None, send)

    served.runner.run(connect())
    assert sent == [{"type": "websocket.close", "code": 1008}]
