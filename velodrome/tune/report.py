"""A study as an HTML page that needs nothing else, and its charts as PNG files: history, importances, parallel
coordinates, and why trials ended."""

from __future__ import annotations

import itertools
import json
import math
import re
from pathlib import Path
from typing import Any

from velodrome.runs.report.charts import Figure, bars, layout_of
from velodrome.runs.report.images import DOTS_PER_INCH, draw
from velodrome.runs.report.report import TEMPLATE
from velodrome.tune.listing import facts_of
from velodrome.tune.space import Dimension
from velodrome.tune.trial import COMPLETE, FAILED, PRUNED, Trial
from velodrome.tune.view import StudyView, shortened, told_params
from velodrome.writing import replace_text, replacing

FOLDER, FILE = "studies", "report.html"
FLAT_LABELS = 6  # of axes that stand side by side on a narrow page
HIGHLIGHTED = 5  # best trials that are drawn in colour
COLOURS = {COMPLETE: "agent", PRUNED: "others", FAILED: "loss"}
COLUMNS = (("trial", "number"), ("status", "text"), ("score", "number"), ("settings", "text"), ("why it ended", "text"))
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline'; \
style-src 'unsafe-inline'; img-src data: blob:"><meta name="color-scheme" content="light dark">
<title>study {{ view.study.name }}</title><style>{{ style | safe }}
td.text, th.text { text-align: left; white-space: normal; }
.modebar-group { background: transparent !important; }</style></head><body><main>
<header><h1>study {{ view.study.name }}</h1><dl class="facts">
{% for name, value in facts.items() %}<dt>{{ name }}</dt><dd>{{ value }}</dd>{% endfor %}
</dl></header>
{% for identity, title, caption in charts %}
<section class="card"><h2>{{ title }}</h2><p class="caption">{{ caption }}</p>
<div class="chart" id="chart-{{ identity }}" data-chart="{{ identity }}" role="img" aria-label="{{ title }}"></div>
</section>{% endfor %}
<section class="card"><h2>Trials</h2><div class="scroll"><table class="sortable"><thead><tr>
{% for heading, kind in headings %}<th scope="col" class="{{ kind }}" data-kind="{{ kind }}">
<button type="button">{{ heading }}</button></th>{% endfor %}</tr></thead><tbody>
{% for row in rows %}<tr>{% for text, value in row %}
<td class="{{ headings[loop.index0][1] }}" data-value="{{ value }}">{{ text }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div></section>
<footer><p>Scores are of the validation split, on which trials were chosen; the winner's evaluation on the test split is
in its run's folder. It is no forecast, no promise of profit and no advice.</p></footer>
</main><script>{{ plotly | safe }}</script>
<script type="application/json" id="figures-data">{{ figures | safe }}</script>
{{ script | safe }}</body></html>
"""


def write_report(view: StudyView) -> Path:
    """Write the page and the charts of a study into studies/NAME of the folder of runs; return the page's path."""
    import jinja2
    from plotly.offline import get_plotlyjs

    folder = view.root / FOLDER / view.study.name
    folder.mkdir(parents=True, exist_ok=True)
    charts = charts_of(view)
    template = TEMPLATE.read_text(encoding="utf-8")
    figures = json.dumps({name: figure for name, _, _, figure in charts}, ensure_ascii=False, allow_nan=False)
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    page = environment.from_string(PAGE).render(
        view=view,
        facts=facts_of(view),
        charts=[chart[:3] for chart in charts],
        headings=[(view.course.settings.score if name == "score" else name, kind) for name, kind in COLUMNS],
        rows=[_row(view, trial) for trial in view.trials],
        style=_between(template, "<style>", "</style>"),
        script=template[template.rindex("<script>") : template.rindex("</script>") + len("</script>")],
        figures=figures.replace("<", "\\u003c"),
        plotly=get_plotlyjs(),
    )
    replace_text(folder / FILE, page)
    for name, title, _, figure in charts:
        with replacing(folder / f"{name}.png") as new:
            draw(figure, f"{title}, study {view.study.name}").savefig(new, dpi=DOTS_PER_INCH)
    return folder / FILE


def _between(text: str, begin: str, end: str) -> str:
    return text.partition(begin)[2].partition(end)[0]


def _row(view: StudyView, trial: Trial) -> list[tuple[str, Any]]:
    value = trial.value if math.isfinite(trial.value) else -1e300
    cells = [(str(trial.number), trial.number), (trial.status, trial.status), (view.score(trial.value), value)]
    return [*cells, (told_params(trial), told_params(trial)), (trial.reason, trial.reason)]


# The charts


def charts_of(view: StudyView) -> list[tuple[str, str, str, Figure]]:
    """Return name, title, caption and figure of each chart."""
    charts = [("history", "History", "Each trial's score, and the best so far.", history_figure(view))]
    if view.importances:
        caption = "How much each field decided whether a trial was among the best tenth (PED-ANOVA)."
        charts.append(("importances", "Importances", caption, importance_figure(view)))
    caption = f"Each line is a trial; the best {HIGHLIGHTED} are drawn in colour, the configuration itself in green."
    return [*charts, ("parallel", "Parallel coordinates", caption, parallel_figure(view))]


def history_figure(view: StudyView) -> Figure:
    """The scores of trials by number, by how they ended, and the best so far."""
    known = [trial for trial in view.trials if math.isfinite(trial.value)]
    data: list[Figure] = []
    for status in (PRUNED, COMPLETE):
        own = [trial for trial in known if trial.status == status]
        points = {"x": [trial.number for trial in own], "y": [trial.value for trial in own], "mode": "markers"}
        marker = {"color": f"var(--{COLOURS[status]})", "size": 6}
        hover = {"text": [told_params(trial) for trial in own], "hovertemplate": "trial %{x}: %{y:.4g}<br>%{text}"}
        if own:
            data.append({"type": "scatter", "name": status, **points, "marker": marker, **hover})
    complete = [trial for trial in known if trial.status == COMPLETE]
    best = list(itertools.accumulate((trial.value for trial in complete), max))
    line = {"color": "var(--gain)", "width": 1.6, "shape": "hv"}
    drawn = {"x": [trial.number for trial in complete], "y": best, "mode": "lines", "line": line}
    data.append({"type": "scatter", "name": "best so far", **drawn})
    return {"data": data, "layout": layout_of(view.course.settings.score, x={"title": {"text": "trial"}})}


def importance_figure(view: StudyView) -> Figure:
    """How much each field decided, as lying bars."""
    ranked = sorted(view.importances.items(), key=lambda each: each[1])
    names = [key for key, _ in ranked]
    texts = {"text": [f"{share:.1%}" for _, share in ranked], "textposition": "outside"}
    shares = [share for _, share in ranked]
    drawn = bars(shares, names, "agent", "%{y}: %{text}", orientation="h", cliponaxis=False, **texts)
    y = {"type": "category", "categoryarray": names, "title": {"text": ""}}
    return {"data": [drawn], "layout": layout_of("", x={"tickformat": ",.0%"}, y=y, showlegend=False)}


def parallel_figure(view: StudyView) -> Figure:
    """Trials as lines over the fields that were searched and the score, each from its lowest to its highest."""
    space = view.course.space
    known = [trial for trial in view.trials if math.isfinite(trial.value)]
    known = [trial for trial in known if all(one.holds(trial.params.get(one.key)) for one in space)]
    ranked = sorted((trial for trial in known if trial.status == COMPLETE), key=lambda trial: -trial.value)
    low, high = min((trial.value for trial in known), default=0.0), max((trial.value for trial in known), default=1.0)

    def line(trials: list[Trial], name: str, colour: str, width: float) -> Figure:
        x: list[float | None] = []
        y: list[float | None] = []
        for trial in trials:
            x += [*range(len(space) + 1), None]
            score = (trial.value - low) / ((high - low) or 1.0)
            y += [*(place_of(one, trial.params[one.key]) for one in space), score, None]
        drawn = {"color": f"var(--{colour})", "width": width}
        return {"type": "scatter", "mode": "lines", "name": name, "x": x, "y": y, "line": drawn, "hoverinfo": "skip"}

    best = ranked[:HIGHLIGHTED]
    first = [trial for trial in known if trial.number == 0]
    data = [line([trial for trial in known if trial not in best], "others", "others", 0.5)]
    data += [line(best, f"best {len(best)}", "agent", 1.8), line(first, "as configured", "gain", 1.8)]
    labels = [f"{one.key.partition('.')[2]}<br>{_ends(one)}" for one in space]
    labels.append(f"{view.course.settings.score}<br>{low:.3g} … {high:.3g}")
    # Ranges of their own: ticks at the ends of what is drawn would have no label.
    ends = [-0.5, len(labels) - 0.5]
    x = {"tickvals": list(range(len(labels))), "ticktext": labels, "title": {"text": ""}, "range": ends}
    x |= {"tickangle": -30} if len(labels) > FLAT_LABELS else {}  # turned the other way, the last one has no room
    y = {"tickvals": [0.0, 1.0], "ticktext": ["lowest", "highest"], "range": [-0.05, 1.05]}
    return {"data": data, "layout": layout_of("", x=x, y=y)}


def _ends(one: Dimension) -> str:
    if one.choices:
        return re.sub(r"^(.{24}).+", r"\1…", ", ".join(map(shortened, one.choices)))
    return f"{one.low:g} … {one.high:g}"


def place_of(one: Dimension, value: Any) -> float:
    """Return where a value lies in its range, from 0 to 1."""
    if one.choices:
        return one.choices.index(value) / max(len(one.choices) - 1, 1)
    if one.log:
        return math.log(value / one.low) / math.log(one.high / one.low)
    return float((value - one.low) / (one.high - one.low))
