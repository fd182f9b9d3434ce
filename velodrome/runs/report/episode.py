"""One episode as a chart, from what was noted at its beginning and after every step."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from velodrome.runs.report.charts import Figure, layout_of, line


def episode_figure(prices: ArrayLike, values: ArrayLike, units: ArrayLike, held_with: float | None) -> Figure:
    """Return prices, the account's values and its exposure, one above the other.

    held_with: leverage at which an account that buys once and holds is drawn beside; None: none is.
    """
    price, value, held = (np.asarray(numbers, float) for numbers in (prices, values, units))
    steps = np.arange(len(price))
    data = [line(steps, price, "price", "price"), line(steps, value, "portfolio", "agent", yaxis="y2")]
    if held_with is not None:
        holding = value[0] * (1.0 + held_with * (price / price[0] - 1.0))
        holding = np.where(np.minimum.accumulate(holding) > 0.0, holding, 0.0)  # a loss of everything is final
        data.append(line(steps, holding, f"buy and hold ({held_with:g}x)", "buy_and_hold", yaxis="y2"))
    exposure = np.divide(held * price, value, out=np.zeros_like(value), where=value > 0)
    filled: Any = {"fill": "tozeroy", "fillcolor": "var(--agent-soft)", "line": {"shape": "hv", "width": 1.0}}
    data.append(line(steps, exposure, "exposure", "agent", yaxis="y3", **filled))
    places = {"yaxis2": ("portfolio", [0.3, 0.6], {}), "yaxis3": ("exposure", [0.0, 0.25], {"tickformat": ".0%"})}
    lower = {name: {"title": {"text": text}, "domain": part, **more} for name, (text, part, more) in places.items()}
    return {
        "data": data,
        "layout": layout_of("price", x={"title": {"text": "steps"}}, y={"domain": [0.65, 1.0]}, **lower),
    }
