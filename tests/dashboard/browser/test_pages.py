"""Every page in a real browser: quiet, within the window, drawn, live, reached by keys, and back after a restart."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contracts.queue import job
from tests.dashboard.browser.conftest import TOKEN, Server, Visitor
from tests.runs.small_runs import TINY
from velodrome.runs.store.rows import EvaluationRow, RunRecord
from velodrome.runs.store.store import open_store
from velodrome.service.queue import Queue

# Address by name; `{…}` is filled in from the lab. The second part: what such a page shows.
PAGES = {
    "overview": ("", "Running now"),
    "runs": ("runs", "good"),
    "learning": ("runs/{run}?tab=learning", "Validation"),
    "result": ("runs/{run}?tab=result", "Prices and trades"),
    "settings": ("runs/{run}?tab=settings", "What differs"),
    "log": ("runs/{run}?tab=log", "Log"),
    "compare": ("compare?runs={run}", "Settings"),
    "choose": ("compare", "Choose two runs or more"),
    "jobs": ("jobs", "Queue"),
    "studies": ("studies", "pretended"),
    "study": ("studies/{study}", "All settings at once"),
    "population": ("populations/two", "Scores by round"),
    "champions": ("champions", "trading"),
    "champion": ("champions/{champion}", "Lineage"),
    "job": ("jobs/{job}", "What happened"),
    "data": ("data", "Content"),
    "market": ("data/{market}", "What the check found"),
    "benchmarks": ("benchmarks", "Benchmarks"),
    "new": ("new", "The same on the command line"),
}
WIDTHS = (390, 1280)


def address(lab, name: str) -> str:
    return PAGES[name][0].format(**vars(lab))


@pytest.mark.parametrize("name", PAGES)
def test_a_page_shows_its_subject_quietly_within_the_window(visitor, lab, name):
    visitor.problems.clear()
    visitor.requests.clear()
    page = visitor.see(address(lab, name))
    page.get_by_text(PAGES[name][1]).first.wait_for(timeout=30_000)
    page.wait_for_load_state("load")
    assert not page.locator(".failure").count(), page.locator(".failure").all_inner_texts()
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{width} px"
    assert "undefined" not in page.inner_text("main")
    assert "NaN" not in page.inner_text("main")
    assert visitor.problems == []
    foreign = [url for url in visitor.requests if not url.startswith((visitor.base, "data:", "blob:"))]
    assert foreign == []


def test_a_stored_benchmark_is_shown(visitor):
    page = visitor.see("benchmarks")
    page.locator("main td a").first.click()
    page.wait_for_selector("main[data-page=benchmark]")
    page.wait_for_selector("main table tbody tr")
    assert not page.locator(".failure").count()


def test_a_long_label_of_a_line_is_cut_and_a_short_one_stays(visitor):
    visitor.see("")
    found = visitor.page.evaluate(
        """async () => {
            const { shortened } = await import(new URL("static/charts/marks.js", document.baseURI));
            const ctx = document.createElement("canvas").getContext("2d");
            const long = shortened(ctx, "a-long-name-".repeat(9), 150);
            return [long, ctx.measureText(long).width, shortened(ctx, "short", 150)];
        }"""
    )
    assert found[0].startswith("a-long-name-")
    assert found[0].endswith("…")
    assert 120 < found[1] <= 150
    assert found[2] == "short"


def test_charts_of_a_run_are_drawn(visitor, lab):
    page = visitor.see(address(lab, "result"))
    page.wait_for_selector(".candles canvas")
    page.wait_for_selector(".chart canvas")
    page.wait_for_timeout(400)
    assert visitor.share(".card:has(h2:text-is('Equity')) .plot", "agent") > 0.0005
    assert visitor.share(".candles >> nth=0", "loss") > 0.0005
    assert visitor.share(".candles >> nth=0", "agent") > 0.0001, "arrows of entries"
    assert visitor.share(".candles.second", "loss") > 0.0005, "the second pane"


def test_buttons_of_a_run_ask_its_job(visitor, lab):
    def with_job(route):
        run = route.fetch().json()
        route.fulfill(json={**run, "actions": ["pause", "resume"], "job": {"id": lab.job}})

    page = visitor.page
    page.route(f"**/api/runs/{lab.run}", with_job)
    visitor.see(f"runs/{lab.run}")
    for verb in ("pause", "resume"):
        with page.expect_response(lambda answer: answer.request.method == "POST") as asked:
            page.locator(f"button[data-action={verb}]").click()
        assert asked.value.url.endswith(f"/api/jobs/{lab.job}/{verb}")
        assert "has finished" in asked.value.json()["error"]["message"]
    page.unroute(f"**/api/runs/{lab.run}")


def test_a_run_took_as_long_as_it_trained_however_long_it_waited(visitor, lab):
    def long_ago(route):
        found = route.fetch().json()
        about = {"created": found["created"] - 86_400.0, "steps": 3_000, "mean_steps_per_second": 100.0}
        route.fulfill(json={**found, **about, "lineage": [{"step": 1_000, "parent": "ab12cd34", "text": "a child"}]})

    page = visitor.page
    page.route(f"**/api/runs/{lab.run}", long_ago)
    visitor.see(f"runs/{lab.run}")
    assert page.locator(".tile:has-text('Trained for') .figure").inner_text() == "20 s"
    page.unroute(f"**/api/runs/{lab.run}")


def test_who_comes_back_to_the_queue_finds_it_as_it_was(visitor, lab):
    page = visitor.see("jobs?offset=5000")  # there are fewer
    page.get_by_role("button", name="finished").click()
    page.wait_for_url("**/jobs?status=finished")
    page.locator("main td a").first.click()
    page.wait_for_selector("main[data-page=job]")
    page.go_back()
    page.wait_for_selector("main[data-page=jobs]")
    assert page.locator("button[aria-pressed=true]").inner_text().startswith("finished")


def test_a_form_tells_all_that_it_submits_and_refuses_what_is_no_number_of_cores(visitor):
    page = visitor.see("new")
    page.get_by_label("Priority", exact=True).fill("3")
    page.get_by_label("Cores", exact=True).fill("2")
    page.locator(".command code").get_by_text("--priority 3 --cores 2").wait_for()
    asked = []
    page.on("request", lambda request: asked.append(request.url) if request.method == "POST" else None)
    for wrong in ("", "0", "1.5"):
        page.get_by_label("Cores", exact=True).fill(wrong)
        page.get_by_role("button", name="Submit").click()
        assert page.get_by_label("Cores", exact=True).evaluate(
            "box => document.activeElement === box && !box.validity.valid"
        )
    assert not [url for url in asked if url.endswith("/api/jobs")]


def test_a_token_is_entered_by_hand(browser, server):
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{server.url}runs")
    for token in ("wrong", TOKEN):
        page.get_by_label("Token").fill(token)
        page.keyboard.press("Enter")
        if token == "wrong":
            page.get_by_role("alert").get_by_text("That is not the token of this server.").wait_for()
    page.wait_for_selector("main[data-page=overview]")
    context.close()


def test_enter_in_a_question_says_yes_and_a_name_that_is_none_is_refused_in_a_sentence(visitor, lab):
    page = visitor.see(f"runs/{lab.run}")
    page.locator("button[data-action=promote]").click()
    page.locator("dialog input[name=name]").fill("no name!")
    page.keyboard.press("Enter")
    page.locator(".notice").get_by_text("champion = 'no name!': a name is made of letters").wait_for()
    page.locator("button[data-action=promote]").click()
    page.locator("dialog").get_by_role("button", name="Not now").click()
    page.locator("dialog").wait_for(state="detached")
    visitor.problems.clear()  # the refusal


def test_runs_are_added_to_a_comparison_by_what_is_typed(visitor, lab):
    page = visitor.see("compare")
    page.get_by_label("Add a run").fill("nosuch")
    page.get_by_role("button", name="Add").click()
    page.locator(".notice").get_by_text("no run has nosuch in its name or id").wait_for()
    page.get_by_label("Add a run").fill("good")  # and at once, before the list is there
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/compare?runs={lab.run}")


def test_candles_have_the_whole_room_on_a_phone_and_are_as_many_as_it_shows(browser, server, lab):
    """The library lays its panes out as a table, and tables have a wide first column there."""
    phone = Visitor(browser, server.link, 390)
    page = phone.see(f"data/{lab.market}")
    page.wait_for_selector(".candles canvas")
    assert page.eval_on_selector(".candles td", "cell => cell.getBoundingClientRect().width") == 0
    width = page.eval_on_selector(".candles", "host => host.clientWidth")
    asked = [int(url.partition("points=")[2].partition("&")[0]) for url in phone.requests if "/candles?" in url]
    assert asked
    assert all(points <= 2.5 * width + 1 for points in asked), (asked, width)
    assert phone.problems == []
    phone.close()


def test_marks_of_an_axis_are_told_apart_and_none_is_rounded(visitor):
    marks = """async ([values, kind, step]) => {
        const { mark } = await import(new URL('static/core/format.js', document.baseURI));
        return values.map((value) => mark(value, kind, step));
    }"""
    page = visitor.see("")

    def told(*asked):
        return page.evaluate(marks, list(asked))

    assert told([0.0025, 0.005, 0.0075], "number", 0.0025) == ["0.0025", "0.0050", "0.0075"]
    assert told([-0.025, 0.05, 0.1], "percent", 0.025) == ["−2.5%", "5.0%", "10.0%"]
    assert told([0, 0.5, 1], "percent", 0.5) == ["0%", "50%", "100%"]
    assert told([0, 500_000, 1_000_000], "steps", 500_000) == ["0", "500 k", "1.00 M"]
    assert told([1_000_000, 1_002_500], "steps", 2_500) == ["1.0000 M", "1.0025 M"]
    assert told([100_000, 100_500], "rate", 500) == ["100.0 k/s", "100.5 k/s"]


def test_figures_have_the_units_of_what_was_trained(visitor):
    """A return is a share where there is an account, else a sum of rewards; only discrete actions have shares."""
    kinds = """async names => Object.fromEntries(
        (await import(new URL('static/pages/run/learning.js', document.baseURI))).chartGroups(names)
            .map(([title, , charts]) =>
                [title, charts.map(([, , of, how]) => [of.join(), how.kind, Boolean(how.share)])]))"""
    titles = """async names => (await import(new URL('static/pages/run/learning.js', document.baseURI)))
        .chartGroups(names)[0][2].map(([, text, [name], how]) => [text, how.kind, how.labels[name]])"""
    labels = """async called => (await import(new URL('static/pages/run/learning.js', document.baseURI)))
        .chartGroups(['action/0', 'action/1'], called)[0][2][0][3].labels"""
    validated = "evaluation/validation/return"
    page = visitor.see("")
    account = page.evaluate(kinds, [validated, "evaluation/validation/sharpe", "action/mean", "action/std"])
    assert account["Validation"][0] == [validated, "percent", False]
    assert account["Actions"] == [["action/mean", "number", False], ["action/std", "number", False]]
    rewards = page.evaluate(kinds, [validated, "episode/return", "action/0", "action/1"])
    assert rewards["Validation"] == [[validated, "number", False]]
    assert rewards["In sample"] == [["episode/return", "number", False]]
    assert rewards["Actions"] == [["action/0,action/1", "percent", True]]
    episodes = ["episode/max_drawdown", "episode/return", "episode/equity_return"]
    told = [["return", "percent", "return"], ["sum of rewards", "number", "sum of rewards"]]
    assert page.evaluate(titles, episodes)[:2] == told
    assert page.evaluate(titles, ["episode/return"]) == [["return", "number", None]]
    assert page.evaluate(labels, ["sell", "buy"]) == {"action/0": "sell", "action/1": "buy"}
    assert page.evaluate(labels, []) == {"action/0": "action 0", "action/1": "action 1"}


def test_charts_of_a_study_are_drawn_and_a_brush_keeps_trials(visitor, lab):
    page = visitor.see(address(lab, "study"))
    page.wait_for_selector(".chart canvas")
    page.wait_for_selector(".parallel .axis")
    assert visitor.share(".card:has(h2:text-is('Progress')) .plot", "agent") > 0.0005
    assert visitor.share(".parallel", "gain") > 0.0005, "the best trial"
    status = page.locator(".card:has(h2:text-is('Trials')) [role=status]")
    everything = status.inner_text()
    axis = page.locator(".parallel .axis").first
    axis.focus()
    axis.press("ArrowUp")
    page.wait_for_function("text => !document.body.innerText.includes(text)", arg=everything)
    assert "within the brushes" in status.inner_text()
    axis.press("Escape")
    page.wait_for_function("text => document.body.innerText.includes(text)", arg=everything)


def test_dark_and_light_differ_and_the_choice_is_kept(visitor, lab):
    page = visitor.see("")
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    button = page.locator("#theme")
    button.click()
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    button.click()
    assert page.evaluate(background) != light
    page.reload()
    visitor.ready()
    assert page.evaluate(background) != light, "kept"
    page.locator("#theme").click()  # as the system has it
    assert page.evaluate(background) == light


def test_every_page_can_be_reached_by_keys_alone(visitor):
    page = visitor.see("")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"
    names = page.locator("#navigation a").all_inner_texts()
    seen = set()
    page.reload()
    visitor.ready()
    for _ in range(len(names) + 2):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("document.activeElement.textContent"))
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", "the focus is seen"
    assert seen >= set(names)
    page.locator("#navigation a", has_text="Studies").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("main[data-page=studies]")
    assert page.evaluate("document.activeElement.tagName") == "H1", "the focus goes with the reader"


def test_tabs_are_moved_by_arrows(visitor, lab):
    page = visitor.see(address(lab, "learning"))
    page.locator("[role=tab]", has_text="Learning").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("[role=tab][aria-selected=true]").inner_text() == "Result"
    page.keyboard.press("End")
    assert page.locator("[role=tab][aria-selected=true]").inner_text() == "Log"


def test_five_thousand_trials_of_two_hundred_columns_do_not_jump(visitor, lab):
    many = 5000
    each = {"status": "complete", "fresh": None, "cost": 1.0, "steps": 1, "seeds": 1, "reason": "", "created": 0.0}
    trials: dict[str, Any] = {name: [value] * many for name, value in {**each, "updated": 0.0}.items()}
    trials |= {"total": many, "number": list(range(many)), "value": [i % 977 for i in range(many)], "figures": {}}
    trials |= {"text": [str(value) for value in trials["value"]], "runs": [[]] * many}
    trials["params"] = {f"ppo.setting_{k}": [float(k)] * many for k in range(200)}
    page = visitor.page
    page.route("**/trials", lambda route: route.fulfill(json=trials))
    try:
        visitor.see(address(lab, "study"))
        page.wait_for_selector(".grid-row")
        assert "5,000 of 5,000" in page.inner_text(".card:has(h2:text-is('Trials')) [role=status]")
        assert page.locator(".grid-cell").count() < 3000, "only cells in sight exist"
        height = page.evaluate("document.querySelector('.grid-body').offsetHeight")
        for share in (0.2, 0.7, 1.0):
            page.evaluate(f"document.querySelector('.grid-frame').scrollTop = {share} * {height}")
            page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
            assert page.evaluate("document.querySelector('.grid-body').offsetHeight") == height
        assert page.locator(".grid-row").last.get_attribute("aria-rowindex") == str(many + 1)
        page.fill(".card:has(h2:text-is('Trials')) input[type=search]", "value >= 970, number < 2000")
        page.wait_for_function("() => document.body.innerText.includes('14 of 5,000')")
        page.click(".grid-head button[data-key=number]")
        first = page.locator(".grid-row").first.locator(".grid-cell").first
        assert first.inner_text() == str(max(i for i in range(2000) if i % 977 >= 970))
    finally:
        page.unroute("**/trials")


def test_settings_of_the_form_are_checked_as_they_are_typed(visitor):
    page = visitor.see("new")
    field = page.locator(".field[data-key=steps]")
    field.locator("input").fill("-5")
    field.locator(".problem:not(:empty)").wait_for(timeout=30_000)
    assert field.locator("input").get_attribute("aria-invalid") == "true"
    assert page.locator("button[type=submit]").is_disabled()
    field.locator("input").fill("100000")
    page.wait_for_function("() => document.querySelector('.command code').textContent.includes('steps=100000')")
    assert page.locator("button[type=submit]").is_enabled()
    assert not field.locator(".problem").inner_text()


def test_names_are_text_never_markup(visitor, lab):
    page = visitor.page
    evil = "<img src=x onerror=window.hacked=1><script>window.hacked=1</script>"

    def answer(route: Any) -> None:
        found = route.fetch().json()
        for run in found["runs"]:
            run.update(name=evil, env=evil, algorithm=evil)
        route.fulfill(json=found)

    page.route("**/api/runs?*", answer)
    try:
        visitor.see("runs")
        page.get_by_text(evil).first.wait_for()
        assert page.evaluate("window.hacked") is None
        assert not page.locator("main img, main script").count()
    finally:
        page.unroute("**/api/runs?*")


def test_a_page_that_is_not_there_says_so(visitor):
    page = visitor.see("runs/no-such-run")
    assert page.locator(".failure").inner_text()
    visitor.problems.clear()


def test_a_browser_without_shared_workers_has_a_stream_of_its_own(browser, server):
    visited = Visitor(browser, server.link, before="delete window.SharedWorker")
    visited.page.wait_for_selector("#connection[data-state=live]", timeout=30_000)
    assert [url for url in visited.requests if "api/events" in url]
    visited.close()


@pytest.mark.slow
def test_twelve_tabs_share_one_stream(browser, server):
    visited = Visitor(browser, server.link)
    pages = [visited.context.new_page() for _ in range(11)]
    for page in pages:
        page.goto(visited.base)
        visited.ready(page)
        page.wait_for_selector("#connection[data-state=live]", timeout=30_000)
    streams = [url for url in visited.requests if "api/events" in url]
    assert len(streams) <= 1, "the shared worker's own; it may be out of the pages' sight"
    visited.close()


def test_a_training_appears_by_itself(visitor, lab):
    from velodrome.runs.run import train

    page = visitor.see("runs")
    page.wait_for_selector("#connection[data-state=live]", timeout=30_000)
    page.evaluate("window.sameDocument = true")
    train("smoke", mode="quiet", evaluate=False, name="newcomer", **{**TINY, "logging.folder": str(lab.folder)})
    row = page.locator("tr", has_text="newcomer")
    row.get_by_text("finished").wait_for(timeout=30_000)
    assert "640" in row.inner_text()
    assert page.evaluate("window.sameDocument"), "without a reload"


def test_it_comes_back_after_a_restart(browser, lab):
    own = Server(lab.folder)
    visited = Visitor(browser, own.link)
    try:
        visited.page.wait_for_selector("#connection[data-state=live]", timeout=30_000)
        own.stop()
        visited.page.wait_for_selector("#connection[data-state=waiting]", timeout=30_000)
        assert visited.page.inner_text("#connection") == "Reconnecting"
        visited.page.click("#navigation >> text=Runs")  # whose module was not asked for yet
        visited.page.locator("main").get_by_text("The server does not answer").wait_for()
        own.start()
        visited.page.wait_for_selector("#connection[data-state=live]", timeout=60_000)
        visited.page.get_by_role("link", name="good").first.wait_for()
    finally:
        visited.close()
        own.stop()


def test_a_proxy_prefix_is_kept(browser, lab):
    own = Server(lab.folder, prefix="/velo/drome")
    visited = Visitor(browser, own.link)
    try:
        visited.page.click("#navigation >> text=Runs")
        visited.page.wait_for_selector("main[data-page=runs]")
        assert visited.page.url == f"{own.url}runs"
        visited.page.reload()
        visited.ready()
        visited.page.wait_for_selector("#connection[data-state=live]", timeout=30_000)
        assert all(url.startswith(own.url) for url in visited.requests)
        assert visited.problems == []
    finally:
        visited.close()
        own.stop()


def test_lists_count_and_show_what_has_changed_since_without_a_reload(browser, tmp_path):
    store = open_store(tmp_path / "runs")
    store.create_run(RunRecord("ab12cd34", "one", "/nowhere", "trading", "ppo", "running", config={"steps": 100}))
    queue = Queue(store)
    queue.submit(job("ab12cd34"))
    server = Server(tmp_path / "runs")
    visitor = Visitor(browser, server.link)
    try:
        page = visitor.see("jobs")
        page.locator("button", has_text="waiting 1").wait_for()
        page.wait_for_function("document.getElementById('connection').dataset.state === 'live'")
        page.wait_for_timeout(1500)  # it looks once before it tells of changes
        queue.cancel("ab12cd34")
        page.locator("button", has_text="cancelled 1").wait_for(timeout=10_000)
        page = visitor.see("runs")
        page.locator("button", has_text="running 1").wait_for()
        store.update_run("ab12cd34", status="finished", steps=100)
        page.locator("button", has_text="finished 1").wait_for(timeout=10_000)
        page.wait_for_timeout(2000)
        store.add_evaluations("ab12cd34", [EvaluationRow(100, "test", "return", 0.25, 0.1, 0.4)])
        page.locator("td", has_text="+25").wait_for(timeout=10_000)
        visitor.see("runs/ab12cd34")
        store.add_evaluations("ab12cd34", [EvaluationRow(100, "test", "return", 0.5, 0.1, 0.9)])
        page.locator(".tile", has_text="+50").wait_for(timeout=10_000)
    finally:
        visitor.close()
        server.stop()
        store.close()


def test_an_error_of_long_words_stays_within_its_box_and_keeps_its_lines(visitor, lab):
    def failed(route):
        route.fulfill(json={**route.fetch().json(), "error": f"Traceback:\n  File\n{'^' * 400}"})

    page = visitor.page
    page.set_viewport_size({"width": 390, "height": 900})
    page.route(f"**/api/runs/{lab.run}", failed)
    visitor.see(f"runs/{lab.run}")
    box = page.locator(".failure")
    assert box.evaluate("node => node.scrollWidth <= node.clientWidth")
    assert box.inner_text().startswith("Traceback:\n  File\n^^^")
    page.unroute(f"**/api/runs/{lab.run}")
    page.set_viewport_size({"width": 1280, "height": 900})
