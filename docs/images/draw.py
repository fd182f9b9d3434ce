"""Draws the pictures of the README: a report in a browser, and the live view of the training that made it.

python docs/images/draw.py      needs chromium and the extra `dev`
"""

from __future__ import annotations

import io
import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright
from rich.console import Console

import velodrome as vd
from velodrome.runs.live.display import LiveView

FOLDER = Path(__file__).parent
SIZE = {"width": 1280, "height": 1000}  # pixels
SHOWN_AT = 0.6  # of the training: where the live view is drawn


def main() -> None:
    panels: dict[float, object] = {}
    draw = LiveView.draw

    def kept(view: LiveView) -> None:
        draw(view)
        panels[view.progress.share] = view.panel()

    LiveView.draw = kept  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        terminal = Console(file=io.StringIO(), force_terminal=True, width=100, height=30)
        # With costs: the market is made to be learnable, and without them its returns look like a promise.
        settings = {"logging.folder": folder, "params.fee": 1e-4}
        run = vd.train(steps=400_000, console=terminal, mode="live", **settings)
        draw_live(panels[min(panels, key=lambda share: abs(share - SHOWN_AT))])
        draw_report(run.folder.report_path)


def draw_live(panel: object) -> None:
    target = Console(record=True, file=io.StringIO(), width=100, force_terminal=True)
    target.print(panel)
    target.save_svg(str(FOLDER / "live.svg"), title="velodrome train")


def draw_report(page: Path) -> None:
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        tab = browser.new_page(viewport=SIZE)
        tab.goto(page.as_uri())
        tab.wait_for_timeout(2_000)  # milliseconds: the charts draw themselves
        tab.evaluate("window.scrollTo(0, document.querySelector('.js-plotly-plot').closest('section').offsetTop - 16)")
        tab.wait_for_timeout(500)
        tab.screenshot(path=str(FOLDER / "report.png"))
        browser.close()


if __name__ == "__main__":
    main()
