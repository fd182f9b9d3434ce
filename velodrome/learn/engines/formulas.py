"""PPO's formulas about one sample: plain scalar Python, compiled into the CPU's loops and into the GPU's kernels.

`ppo_loss` in `learn/ppo.py` and the distributions in `learn/actions.py` state the same for whole tensors; tests hold
each function here to them. Callers bring exponentials and logarithms, because every device has its own fast ones.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

# Constants of compiled float32 code must be float32 themselves: a Python float would make the arithmetic double.
FLOAT = np.float32
ZERO, HALF, ONE = FLOAT(0.0), FLOAT(0.5), FLOAT(1.0)
LOG_ROOT_TWO_PI = FLOAT(0.5 * math.log(2.0 * math.pi))


# The loss: policy + value_weight · value − entropy_weight · entropy + kl_weight · KL, each a mean over the minibatch.
# Functions return a sample's loss and its slope, the derivative by what the network gives out. Choices between numbers
# are conditional expressions without a branch, which compilers turn into vector code, and let a number that is not one
# pass.


def policy_loss(change: Any, ratio: Any, advantage: Any, clip: Any, kl_weight: Any) -> Any:
    """Return max(−a·r, −a·clip(r)), the slope by the log-probability of that and of the weighted KL divergence, an
    estimate of the divergence, (r − 1) − log r, and whether r lies outside the clipping.

    change: of the log-probability since the action was taken. ratio: r = exp(change).
    """
    low, high = ONE - clip, ONE + clip
    kept = low if ratio < low else ratio
    kept = high if kept > high else kept
    free, clipped = -advantage * ratio, -advantage * kept
    is_clipped = clipped > free
    loss = clipped if is_clipped else free
    slope = ZERO if is_clipped else free
    if kl_weight > ZERO:
        slope += kl_weight * (ratio - ONE)
    return loss, slope, (ratio - ONE) - change, abs(ratio - ONE) > clip


def value_loss(value: Any, old: Any, target: Any, limit: Any) -> Any:
    """Return ½ (v − R)² and its slope; with a limit above 0, the larger of that and the one with a clipped v."""
    error = value - target
    loss, slope = HALF * error * error, error
    if limit > ZERO:
        moved = value - old
        limited = -limit if moved < -limit else moved
        limited = limit if limited > limit else limited
        error = old + limited - target
        other = HALF * error * error
        is_worse = other > loss
        loss = other if is_worse else loss
        # Beyond the limit the clipped value does not move.
        slope = (error if limited == moved else ZERO) if is_worse else slope
    return loss, slope


# Discrete choices. The slope of a log-probability by a logit is (1 if that option was taken else 0) − its chance.


def option_entropy(chance: Any, log_chance: Any) -> Any:
    """Return what one option adds to the entropy of a choice."""
    return -chance * log_chance


def entropy_slope(chance: Any, log_chance: Any, entropy: Any) -> Any:
    """Return the slope of minus the entropy of a choice by one logit."""
    return chance * (log_chance + entropy)


def drawn_option(chances: Any, noise: Any) -> Any:
    """Return the option that a number, uniform in [0, 1), falls on, given the chances of all options."""
    chosen = 0
    # Rounding may leave something of the noise after the last option.
    while chosen < chances.shape[0] - 1 and noise >= chances[chosen]:
        noise -= chances[chosen]
        chosen += 1
    return chosen


# Independent normal actions of standard deviation exp(log_std); precision is exp(−log_std).


def normal_deviation(action: Any, mean: Any, precision: Any) -> Any:
    """Return how many standard deviations an action lies from the mean."""
    return (action - mean) * precision


def normal_log_density(deviation: Any, log_std: Any) -> Any:
    """Return the logarithm of the density."""
    return -(HALF * deviation * deviation + (log_std + LOG_ROOT_TWO_PI))


def normal_entropy(log_std: Any) -> Any:
    """Return the entropy."""
    return HALF + (log_std + LOG_ROOT_TWO_PI)


def normal_slopes(deviation: Any, precision: Any) -> Any:
    """Return the slopes of the log-density by the mean and by log_std."""
    return deviation * precision, deviation * deviation - ONE


def drawn_normal(mean: Any, deviation: Any, noise: Any) -> Any:
    """Return an action, given its standard deviation and standard normal noise."""
    return mean + deviation * noise
