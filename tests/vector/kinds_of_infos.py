"""What an environment says besides its observations: infos of every kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def no_info(env: Any, moment: str) -> dict[str, Any]:
    return {}


def scalar_info(env: Any, moment: str) -> dict[str, Any]:
    return {
        "count": env.count, "share": env.count / 3, "even": env.count % 2 == 0, "narrow": np.float32(env.count / 7),
        "small": np.int8(env.count), "large": 2**40 + env.count, "not a number": float("nan"), f"only in {moment}": 1,
    }  # fmt: skip


def odd_info(env: Any, moment: str) -> dict[str, Any]:
    """Return numbers that are not exact as a float, or that Gymnasium does not take for numbers."""
    return {"whole": 2**60 + env.count, "flag": np.bool_(env.count % 2),
            "complex": np.complex64(1j), "unsigned": np.uint64(2**63 + env.count)}  # fmt: skip


def array_info(env: Any, moment: str) -> dict[str, Any]:
    rng = env.np_random
    return {"row": rng.normal(size=2).astype(np.float32), "matrix": rng.integers(-9, 9, (2, 2), np.int16),
            "point": np.array(env.count / 3), "empty": np.zeros((0, 2))}  # fmt: skip


def object_info(env: Any, moment: str) -> dict[str, Any]:
    return {"word": f"{moment} {env.count}", "nothing": None, "list": [env.count, "x"], "pair": (env.count, 0.5),
            "bytes": b"\x00\xff"}  # fmt: skip


def nested_info(env: Any, moment: str) -> dict[str, Any]:
    inner = {"deep": env.count, "row": np.full(2, env.count), "word": moment}
    return {"outer": {"inner": inner, "share": env.count / 3}, "hollow": {}}


def rare_info(env: Any, moment: str) -> dict[str, Any]:
    """Return different keys in different steps, and in most of them nothing."""
    chance = env.np_random.random()
    if chance < 0.2:
        return {"rare": env.count, "nested": {"rare": chance}}
    return {"other": chance, "nested": {"word": "x"}} if chance < 0.3 else {}


SAID: dict[str, Any] = {}


def one_info(env: Any, moment: str) -> dict[str, Any]:
    """Return one dict into which every call of every environment writes, also that which begins the next episode.

    Gymnasium's loop copies it at once; its workers do not, so this is none of the kinds that all have to pass on.
    """
    env.told["row"][:] = env.told["inner"]["count"] = env.count
    SAID.update(env.told, count=env.count, moment=moment)
    return SAID


def every_info(env: Any, moment: str) -> dict[str, Any]:
    kinds = (scalar_info, odd_info, array_info, object_info, nested_info, rare_info)
    return {key: value for kind in kinds for key, value in kind(env, moment).items()}


INFOS: dict[str, Callable[[Any, str], dict[str, Any]]] = {
    "none": no_info, "scalars": scalar_info, "odd": odd_info, "arrays": array_info, "objects": object_info,
    "nested": nested_info, "rare": rare_info, "every": every_info,
}  # fmt: skip
