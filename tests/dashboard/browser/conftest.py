"""A folder of small runs, a server that shows it, and a real browser that looks at it."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.dashboard.test_populations import population
from tests.runs.small_runs import TINY
from tests.service.pretending import PretendingExecutor, begin, keep, pretending, score
from tests.tune.conftest import GOOD, crown

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
TOKEN = "a-token-of-the-tests-0123456789abcdefghijklm"


@dataclass
class Lab:
    """A folder with a run, a study and a champion of two promotions."""

    folder: Path
    run: str
    study: str
    champion: str
    market: str
    job: str


@pytest.fixture(scope="session")
def lab(tmp_path_factory) -> Lab:
    """What the pages show: a run that was evaluated, a study whose trainings pretend, a champion that had another."""
    from velodrome.runs.run import train

    folder = tmp_path_factory.mktemp("dashboard") / "runs"
    run = train("smoke", mode="quiet", name="good", **{**TINY, **GOOD, "logging.folder": str(folder)})
    service = pretending(folder, PretendingExecutor(score))
    study = begin(service, 12)
    assert keep(service, study)
    job = next(iter(service.queue.of_study(study.id)))
    service.close()
    population(folder / "two")
    for _ in range(2):
        crown(run, folder)
    return Lab(folder, run.folder.id, study.name, "trading", str(run.folder.information["data_hash"]), job)


class Server:
    """The dashboard's server in a thread of this process; it can be stopped, and started again at the same port."""

    def __init__(self, folder: Path, prefix: str = "") -> None:
        from velodrome.dashboard.server import address_of, link_of, listen
        from velodrome.dashboard.settings import Settings

        settings = Settings(folder, port=0, token=TOKEN, benchmarks=(RESULTS,), prefix=prefix)
        self._socket, self.settings = listen(settings, chosen=True)
        self.url, self.link = address_of(self.settings), link_of(self.settings)
        self.start()

    def start(self) -> None:
        """Serve, and wait until it does."""
        import uvicorn

        from velodrome.dashboard.app import make_app
        from velodrome.dashboard.server import listen, patient_protocol

        if self._socket.fileno() < 0:
            self._socket, _ = listen(replace(self.settings), chosen=True)
        self._app: Any = make_app(self.settings)
        config = uvicorn.Config(
            self._app, log_level="error", access_log=False, lifespan="on", loop="asyncio", http=patient_protocol(),
            ws="none", timeout_graceful_shutdown=1,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), daemon=True)
        self._thread.start()
        deadline = time.monotonic() + 60.0
        while not self._server.started:
            assert time.monotonic() < deadline, "the server does not start"
            time.sleep(0.02)

    def stop(self) -> None:
        """End it, with its open streams."""
        self._app.inner.state.live.end()
        self._server.should_exit = True
        self._thread.join(30.0)
        assert not self._thread.is_alive(), "the server does not end"
        self._socket.close()


@pytest.fixture(scope="module")
def server(lab) -> Iterator[Server]:
    """The server of all tests that do not stop theirs."""
    made = Server(lab.folder)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A real Chromium."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if BROWSER is None:
        pytest.skip("no chromium on this machine (apt-get install chromium)")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield opened
        opened.close()


class Visitor:
    """A browser that is logged in, with what its pages said on the console and asked for."""

    def __init__(self, browser: Any, link: str, width: int = 1280, scheme: str = "light", before: str = "") -> None:
        self.base = link.split("?")[0]
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.context.add_init_script(before)
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.context.on("console", self._heard)
        self.context.on("weberror", lambda found: self.problems.append(str(found.error)))
        self.context.on("request", lambda request: self.requests.append(request.url))
        self.page = self.context.new_page()
        self.page.goto(link)
        self.ready()

    def _heard(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"{message.type}: {message.text} ({message.location.get('url')})")

    def ready(self, page: Any = None) -> None:
        """Wait until a page has shown what it was asked for."""
        (page or self.page).wait_for_selector("main[data-ready]", timeout=60_000)

    def see(self, path: str) -> Any:
        """Go to a page by its address."""
        self.page.goto(self.base + path)
        self.ready()
        return self.page

    def pixels(self, selector: str) -> Any:
        """Return what is drawn in an element, as rows of colours."""
        import io

        import numpy as np
        from PIL import Image

        taken = self.page.locator(selector).first.screenshot(animations="disabled")
        return np.asarray(Image.open(io.BytesIO(taken)).convert("RGB")).astype(int)

    def colour(self, name: str) -> Any:
        """Return a colour of the theme."""
        return self.page.evaluate(
            """async name => (await import(new URL('static/core/theme.js', document.baseURI))).colour(name)
                .match(/[0-9.]+/g).slice(0, 3).map(Number)""",
            name,
        )

    def share(self, selector: str, name: str) -> float:
        """Return the share of an element's pixels that have a colour of the theme."""
        import numpy as np

        return float((np.abs(self.pixels(selector) - np.array(self.colour(name))).max(axis=2) < 40).mean())

    def close(self) -> None:
        """Leave."""
        self.context.close()


@pytest.fixture(scope="module")
def visitor(browser, server) -> Iterator[Visitor]:
    """A browser at the server of all tests."""
    made = Visitor(browser, server.link)
    yield made
    made.close()
