"""axe-core finds nothing serious on any page, in light and dark, on a screen and on a phone."""

from __future__ import annotations

import pytest

from tests.dashboard.browser.conftest import Visitor
from tests.dashboard.browser.test_pages import PAGES, address

# Everything in sight that a mouse could use, less what has been focused since.
WATCH = """() => {
    const parts = document.querySelectorAll('a[href], button, input, select, summary, [tabindex="0"]');
    window.missed = new Set([...parts].filter(part => part.checkVisibility() && !part.disabled && part.tabIndex >= 0));
    document.addEventListener('focusin', event => window.missed.delete(event.target));
    return window.missed.size;
}"""
SERIOUS = ("serious", "critical")


def found(page) -> list[str]:
    """Return what axe-core says of a page, the serious only."""
    from axe_playwright_python.sync_playwright import Axe

    result = Axe().run(page)
    return [
        f"{one['id']} ({one['impact']}): {one['help']}: " + "; ".join(node["html"][:120] for node in one["nodes"][:4])
        for one in result.response["violations"]
        if one["impact"] in SERIOUS
    ]


@pytest.fixture(
    scope="module", params=[(1280, "light"), (1280, "dark"), (390, "light")], ids=lambda p: f"{p[0]}-{p[1]}"
)
def looking(request, browser, server):
    pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")
    width, scheme = request.param
    made = Visitor(browser, server.link, width, scheme)
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing_serious(looking, lab, name):
    page = looking.see(address(lab, name))
    page.get_by_text(PAGES[name][1]).first.wait_for(timeout=60_000)
    page.wait_for_timeout(500)
    assert found(page) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_everything_is_reached_by_the_tab_key(browser, server, lab, name):
    visited = Visitor(browser, server.link)
    page = visited.see(address(lab, name))
    page.get_by_text(PAGES[name][1]).first.wait_for(timeout=60_000)
    page.wait_for_timeout(500)
    for _ in range(page.evaluate(WATCH) + 10):
        page.keyboard.press("Tab")
    told = "() => [...window.missed].filter(part => part.isConnected).map(part => part.outerHTML.slice(0, 150))"
    left = page.evaluate(told)
    visited.close()
    assert left == []
