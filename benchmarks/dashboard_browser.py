"""What the dashboard's pages cost in a real Chromium: first paint with twelve tabs, 200 curves, an idle page.

python benchmarks/dashboard.py make FOLDER      writes a store: 1,000 runs, 10 million rows of metrics, 5,000 trials
python benchmarks/dashboard_browser.py FOLDER   starts a server on it, looks at every page, writes a table

First paint is the browser's own figure (first-contentful-paint, since the navigation began); "shown" is when the page
has its content. Idle is the share of a core that all processes of the browser take while nobody touches it. --json FILE
keeps the figures. FOLDER must not be that of your own runs: the server starts no scheduler for it, but reads all of it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from velodrome.runs.versions import git_commit, machine
from velodrome.writing import replace_text

TABS, IDLE_SECONDS, CURVES = 12, 30.0, 200
PAGES = (
    "",
    "runs",
    "runs/{run}?tab=learning",
    "compare?runs={runs}",
    "jobs",
    "studies",
    "studies/{study}",
    "champions",
    "data",
    "benchmarks",
    "new",
)
TIMES = """() => ({
    paint: performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null,
    shown: performance.now(),
})"""


def serve(folder: Path) -> tuple[subprocess.Popen[str], str]:
    """Start a server and return it with its link."""
    words = [sys.executable, "-m", "velodrome", "serve", "--folder", str(folder), "--port", "0", "--no-open"]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert server.stdout is not None
    for line in server.stdout:
        if found := re.search(r"http://\S+\?token=\S+", line):
            return server, found[0]
    raise SystemExit("the server printed no link")


def browser_seconds(parent: psutil.Process) -> float:
    """CPU seconds of a browser's processes so far."""
    total = 0.0
    for process in parent.children(recursive=True):
        if "chrom" in process.name():
            used = process.cpu_times()
            total += used.user + used.system
    return total


def ask(page: Any, path: str) -> Any:
    """Return an answer of the API, asked by a page."""
    return page.evaluate("path => fetch(new URL(path, document.baseURI)).then(answer => answer.json())", path)


def measure(link: str) -> dict[str, Any]:
    """Look at everything."""
    from playwright.sync_api import sync_playwright

    base = link.split("?")[0]
    figures: dict[str, Any] = {"pages": {}}
    here = psutil.Process(os.getpid())
    executable = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        first = context.new_page()
        first.goto(link)
        first.wait_for_selector("main[data-ready]")
        runs = [run["id"] for run in ask(first, f"api/runs?limit={CURVES}&q=long")["runs"]]
        runs = runs or [run["id"] for run in ask(first, f"api/runs?limit={CURVES}")["runs"]]
        studies = ask(first, "api/studies")["studies"]
        names = {"run": runs[0], "runs": ",".join(runs[:8]), "study": studies[0]["name"] if studies else ""}
        tabs = [first, *(context.new_page() for _ in range(TABS - 1))]
        for tab in tabs[1:]:
            tab.goto(base)
            tab.wait_for_selector("main[data-ready]")
        for path in PAGES:
            if "{study}" in path and not studies:
                continue
            page = tabs[-1]
            page.goto(base + path.format(**names))
            page.wait_for_selector("main[data-ready]")
            times = page.evaluate(TIMES)
            figures["pages"][path or "overview"] = {"first_paint_ms": times["paint"], "shown_ms": times["shown"]}
        figures["overlay"] = overlay(tabs[-1], base, runs)
        for tab in tabs[1:]:
            tab.close()
        first.goto(base)
        first.wait_for_selector("main[data-ready]")
        first.wait_for_timeout(10_000)  # what was closed is tidied up meanwhile
        before, began = browser_seconds(here), time.perf_counter()
        first.wait_for_timeout(IDLE_SECONDS * 1000)
        figures["idle_share_of_a_core"] = (browser_seconds(here) - before) / (time.perf_counter() - began)
        browser.close()
    return figures


def overlay(page: Any, base: str, runs: list[str]) -> dict[str, Any]:
    """Ask for one metric of 200 runs, and draw it: how long, from the question to the last line."""
    page.goto(base)
    page.wait_for_selector("main[data-ready]")
    names = list(ask(page, f"api/runs/{runs[0]}")["metrics"])
    return page.evaluate(
        """async ([runs, name]) => {
            const { Curves } = await import(new URL('static/parts/curves.js', document.baseURI));
            const { LineChart } = await import(new URL('static/charts/line.js', document.baseURI));
            const chart = new LineChart('overlay', { height: 400 });
            document.querySelector('main').prepend(chart.node);
            const began = performance.now();
            const curves = new Curves(runs.map(id => ({ id, name: id })), undefined, 500);
            await curves.load([name]);
            const asked = performance.now();
            const series = curves.of(name);
            chart.data(series);
            await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
            return { curves: series.length, points: series.reduce((sum, one) => sum + one.total, 0),
                asked_ms: asked - began, drawn_ms: performance.now() - asked };
        }""",
        [runs, names[0]],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path, help="keep the figures in this file")
    told = parser.parse_args()
    server, link = serve(told.folder)
    try:
        commit = git_commit(Path(__file__).parent)
        figures = {"machine": machine(), "commit": commit, "load": os.getloadavg()[0], **measure(link)}
    finally:
        server.terminate()
        server.wait(60)
    for path, times in figures["pages"].items():
        print(f"{path:28} first paint {times['first_paint_ms']:7.0f} ms   shown {times['shown_ms']:7.0f} ms")
    one = figures["overlay"]
    print(f"{one['curves']} curves of {one['points']:,} points together:", end=" ")
    print(f"asked {one['asked_ms']:.0f} ms, drawn {one['drawn_ms']:.0f} ms")
    print(f"idle: {figures['idle_share_of_a_core']:.2%} of a core; load average {figures['load']:.1f}")
    if told.json:
        replace_text(told.json, json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
