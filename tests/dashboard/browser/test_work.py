"""The whole way in a real browser, with a real service: form, training, evaluation, promotion, rollback; a study."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.dashboard.browser.conftest import Visitor
from tests.runs.small_runs import TINY
from tests.tune.conftest import GOOD, crown

pytestmark = pytest.mark.slow
PATIENCE = 240_000  # ms, on a busy machine
LONGER = {"steps": 40_000, "checkpoint.every_steps": 10_000, "evaluation.every_steps": 10_000}


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[tuple[Path, str]]:
    """`velodrome serve` in an empty folder: the folder, and the link that it prints."""
    folder = tmp_path_factory.mktemp("served")
    words = [sys.executable, "-m", "velodrome", "serve", "--port", "0", "--no-open"]
    process = subprocess.Popen(
        words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    assert process.stdout is not None
    link = ""
    for line in process.stdout:
        if found := re.search(r"http://\S+\?token=\S+", line):
            link = found[0]
            break
    assert link, "no link was printed"
    yield folder, link
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def visited(browser, served) -> Iterator[Visitor]:
    made = Visitor(browser, served[1])
    yield made
    made.close()


def as_text(value: Any) -> str:
    """Return a value as it is typed."""
    return json.dumps(list(value)) if isinstance(value, tuple) else str(value).lower()


def typed(page: Any, key: str, value: Any) -> None:
    """Type a setting into the form."""
    opened = "key => { document.querySelector(`.field[data-key='${key}']`).closest('details').open = true; }"
    page.evaluate(opened, key)
    field = page.locator(f".field[data-key='{key}']").locator("input, select").first
    if field.evaluate("node => node.tagName") == "SELECT":
        field.select_option(as_text(value))
    elif field.get_attribute("type") == "checkbox":
        field.set_checked(bool(value))
    else:
        field.fill(as_text(value))


def settings(**more: Any) -> dict[str, Any]:
    names = {"num_envs": "vector.num_envs"}
    return {names.get(key, key): value for key, value in {**TINY, **GOOD, **more}.items()}


def test_an_empty_folder_says_what_to_type(visited):
    assert "velodrome train demo" in visited.page.inner_text("main")
    assert visited.problems == []


def test_from_the_form_to_a_champion_and_back(visited, served):
    from velodrome.runs.trained import Run

    page = visited.see("new")
    page.get_by_label("Start from").select_option("smoke")
    page.wait_for_function("() => document.querySelector('.command code').textContent.includes('smoke')")
    for key, value in settings(**LONGER, name="made").items():
        typed(page, key, value)
    page.wait_for_function(
        "() => document.querySelector('.command code').textContent.includes('steps=40000')", timeout=PATIENCE
    )
    page.locator("button[type=submit]", has_text="Submit").click()
    page.wait_for_selector("main[data-page=job]", timeout=PATIENCE)
    identity = page.url.rsplit("/", 1)[1]

    # Live while it trains, without a reload.
    page.locator("main .head .badge").filter(has_text=re.compile("running|finished")).wait_for(timeout=PATIENCE)
    deadline = time.monotonic() + PATIENCE / 1000
    while True:
        visited.see(f"runs/{identity}")
        if not page.locator(".failure").count():
            break
        assert time.monotonic() < deadline
        page.wait_for_timeout(300)
    visited.problems.clear()  # the run was asked for before it was there
    page.evaluate("window.sameDocument = true")
    seen = set()
    while page.locator(".head .badge[data-status=finished]").count() == 0:
        seen.add(page.locator(".tile .figure").first.inner_text())
        assert time.monotonic() < deadline, seen
        page.wait_for_timeout(100)
    seen.add(page.locator(".tile .figure").first.inner_text())
    assert len(seen) >= 2, "the steps moved"
    assert page.evaluate("window.sameDocument")

    # Evaluate, and promote.
    page.locator("button[data-action=evaluate]").click()
    page.locator("[data-task=done]").wait_for(timeout=PATIENCE)
    page.locator("button[data-action=promote]").click()
    page.locator("dialog input[name=name]").fill("king")
    page.locator("dialog button[value=yes]").click()
    page.locator("[data-task=done] >> text=Promotion").wait_for(timeout=PATIENCE)

    # Somebody promotes another one; this browser rolls it back.
    folder = served[0] / "runs"
    crown(Run.open(identity, folder), folder, "king")
    visited.see("champions/king")
    page.get_by_text("number 2").first.wait_for()
    page.locator("button[data-action=rollback]").click()
    page.locator("dialog button[value=yes]").click()
    page.locator(".head").get_by_text("number 1").wait_for(timeout=PATIENCE)
    assert visited.problems == []


def test_a_study_moves_while_it_runs(visited, served):
    page = visited.see("studies")
    small = [f"{key}={as_text(value)}" for key, value in settings().items()]
    words = [
        sys.executable,
        "-m",
        "velodrome",
        "tune",
        "smoke",
        *small,
        "--trials",
        "12",  # three are over before a browser is there
        "--study",
        "seen",
        "--seeds",
        "1",
    ]
    words += ["--confirm", "1", "--confirm-seeds", "1", "--final-seeds", "1", "--workers", "1"]
    process = subprocess.Popen(words, cwd=served[0], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        page.get_by_role("link", name="seen").wait_for(timeout=PATIENCE)
        page.get_by_role("link", name="seen").click()
        page.wait_for_selector("main[data-page=study]")
        page.evaluate("window.sameDocument = true")
        seen = set()
        deadline = time.monotonic() + PATIENCE / 1000
        while page.locator(".head .badge[data-status=finished]").count() == 0:
            seen.add(page.locator(".tile .figure").first.inner_text())
            assert time.monotonic() < deadline, seen
            page.wait_for_timeout(150)
        assert len(seen) >= 2, "trials were counted"
        page.locator(".grid-row").first.wait_for(timeout=PATIENCE)
        page.locator("h2", has_text="Winner").wait_for(timeout=PATIENCE)
        assert page.evaluate("window.sameDocument")
    finally:
        said = process.communicate(timeout=PATIENCE / 1000)[0]
    assert process.returncode == 0, said[-2000:]
