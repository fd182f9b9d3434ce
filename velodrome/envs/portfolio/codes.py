"""The portfolio rule's codes: integers for what is chosen once, the phases of a step, and what happened."""

from __future__ import annotations

WEIGHTS, ORDERS, DISCRETE = 0, 1, 2  # action kinds
SOFTMAX, SIMPLEX, SIGNED = 0, 1, 2  # weightings
NEXT_OPEN, CLOSE, NEXT_CLOSE = 0, 1, 2  # fills
LOG_RETURN, EXCESS, BLEND, CUSTOM = 0, 1, 2, 3  # rewards

# The phases of a step. All that closes comes before anything that opens: limits then see what is left, in whatever
# order instruments stand. Sales come before what they pay for.
STOPS, CLOSING_SALES, DECAYS, CLOSING_PURCHASES, OPENING_SALES, OPENING_PURCHASES = range(6)
PHASES = 6

# What became of orders, counted per episode. A purchase or a sale counts once, whatever made it.
BUYS, SELLS, REFUSED_UNTRADABLE, DROPPED_MINIMUM, CUT_CASH, CUT_LIMIT, STOPPED, DECAYED = range(8)
COUNT_NAMES = (
    *("buys", "sells", "refused_untradable", "dropped_minimum"),
    *("cut_cash", "cut_limit", "stopped", "decayed"),
)
COUNTS = len(COUNT_NAMES)
