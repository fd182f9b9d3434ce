"""What a study searches: a range or a list of values for each of some fields, declared beside them or told."""

from __future__ import annotations

import math
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

from velodrome.errors import ConfigError
from velodrome.runs.config.explain import value_text
from velodrome.runs.config.files import load_run_config, parse_value
from velodrome.runs.config.messages import all_fields, unknown_key
from velodrome.runs.config.run_config import RunConfig, dotted

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

# Fields that make one trial comparable with another, or the search worth its time, are never searched; and why.
FIXED = {
    "seed": "the study gives each training its seed",
    "seeds": "the study repeats each trial with several seeds (--seeds)",
    "ensemble": "the study repeats each trial with several seeds (--seeds)",
    "steps": "trials of different length do not compare; give steps=N for all of them",
    "name": "the study names its runs",
    "env": "trials are compared on one environment; start a study for each",
    "algorithm": "each algorithm has settings of its own; start a study for each",
    "device": "it changes no result",
    "vector": "it says how environments run, not what is learnt; give num_envs=N for all trials",
    "checkpoint": "it changes no result",
    "evaluation": "trials are compared by the same evaluation",
    "logging": "it changes no result",
    "resources": "it changes no result",
}
OF_THE_DATA = "it says which data there is, and trials are compared on the same data"
OPEN_IN_MARKET = ("features", "windows", "shorten", "scaler", "clip", "per_instrument")
COSTS = ("fee", "spread", "slippage", "funding", "fill")  # parts of the names of parameters that say what a trade costs
MOST_CHOICES = 1_000


@dataclass(frozen=True)
class Dimension:
    """One field that is searched: between two ends, or among some values."""

    key: str  # dotted
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False  # whole numbers only
    choices: tuple[Any, ...] = ()

    def at(self, share: float) -> Any:
        """Return the value at a share of the way, from 0 to 1."""
        if self.choices:
            return self.choices[min(int(share * len(self.choices)), len(self.choices) - 1)]
        low, high = (self.low - 0.5, self.high + 0.5) if self.whole else (self.low, self.high)
        if self.log:
            value = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
        else:
            value = low + share * (high - low)
        if self.whole:
            return min(max(round(value), int(self.low)), int(self.high))
        return min(max(value, self.low), self.high)

    def share(self, value: Any) -> float:
        """Return the share of the way at which a value lies; `at` leads back to it."""
        if self.choices:
            return (self.choices.index(value) + 0.5) / len(self.choices)
        low, high = (self.low - 0.5, self.high + 0.5) if self.whole else (self.low, self.high)
        if self.log:
            return math.log(value / low) / math.log(high / low)
        return (value - low) / (high - low)

    def holds(self, value: Any) -> bool:
        """Return whether a value is one that could be tried."""
        if self.choices:
            return value in self.choices
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and self.low <= value <= self.high and (not self.whole or value == int(value))

    def told(self) -> str:
        """Return it as a person writes it."""
        if self.choices:
            return value_text(list(self.choices))
        return f"{self.low:g}:{self.high:g}{':log' if self.log else ''}"

    def content(self) -> dict[str, Any]:
        """Return it in plain values, as `Dimension.read` takes them."""
        return {**asdict(self), "choices": list(self.choices)}

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> Dimension:
        """Return what `content` wrote."""
        return cls(**{**content, "choices": tuple(content["choices"])})


Space = Sequence[Dimension]


def space_of(
    config: RunConfig, search: Sequence[str] | Mapping[str, Any] = (), fixed: Sequence[str] = (), only: bool = False
) -> tuple[Dimension, ...]:
    """Return what a study of a configuration searches.

    search: what is told, as "key=low:high", "key=low:high:log" or "key=[a, b, c]", or the same as a mapping of texts or
        of lists; it replaces what is declared beside a field. only: nothing else is searched.
    fixed: dotted keys that somebody gave a value of their own: they keep it.
    """
    told = dict(_read_search(config, search))
    if both := sorted(told.keys() & set(fixed)):
        raise ConfigError(
            f"{both[0]} is given a value and a range to search; leave one out: {both[0]}=… fixes it, and --search "
            f"{both[0]}={told[both[0]].told()} searches it."
        )
    declared = {} if only else {one.key: one for one in _declared(config) if one.key not in {*fixed, *told}}
    space = tuple({**declared, **told}.values())
    if not space:
        raise ConfigError(
            "nothing is left to search: every field with a range of its own was given a value. Leave one out, or give "
            "a range: --search ppo.learning_rate=1e-5:1e-2:log"
        )
    return space


def _declared(config: RunConfig) -> Iterator[Dimension]:
    """Yield what is declared beside the fields that are in use, widened where the configuration lies outside of it."""
    used = dotted(config.content())
    for key, field in all_fields(config.env).items():
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        declared: Any = extra.get("search")
        if declared is None or key not in used or config.choices.idle(key) is not None:
            continue
        if declared.get("beside") and used.get(declared["beside"]) is None:
            continue
        own = used[key]
        if "choices" in declared:
            choices = [*declared["choices"], *([] if own in declared["choices"] else [own])]
            yield Dimension(key, choices=tuple(choices))
            continue
        whole = _takes_whole_numbers(field.annotation)
        low, high = declared["low"], declared["high"]
        # What is no number, such as "auto", lies outside of the range, and is tried first all the same.
        if isinstance(own, int | float):
            low, high = _around(own, low, high, field)
        low, high = (round(low), round(high)) if whole else (low, high)
        yield Dimension(key, low, high, declared["log"] and low > 0.0, whole)


def _around(own: float, low: float, high: float, field: FieldInfo) -> tuple[float, float]:
    """Return a range widened to what a configuration has, and as far beyond it as is legal: it may not be the best."""
    legal = {name: getattr(one, name) for one in field.metadata for name in ("ge", "le") if hasattr(one, name)}
    low = max(2.0 * own - low, min(own, legal.get("ge", own))) if own < low else low
    high = min(2.0 * own - high, max(own, legal.get("le", own))) if own > high else high
    return low, high


def _takes_whole_numbers(annotation: Any) -> bool:
    kinds = set(_kinds(annotation))
    return int in kinds and float not in kinds


def _kinds(annotation: Any) -> Iterator[Any]:
    """Yield the types that an annotation names, such as int and dict of `PositiveInt | dict[str, PositiveInt]`."""
    if get_origin(annotation) in (Union, types.UnionType):
        for one in get_args(annotation):
            yield from _kinds(one)
    elif get_origin(annotation) is Annotated:
        yield from _kinds(get_args(annotation)[0])
    else:
        yield annotation


# What is told


def _read_search(config: RunConfig, search: Sequence[str] | Mapping[str, Any]) -> Iterator[tuple[str, Dimension]]:
    given: dict[str, Any] = {}
    for text in [search] if isinstance(search, str) else search:
        if isinstance(search, Mapping):
            key, value = text, search[text]
        else:
            key, equals, value = str(text).partition("=")
            if not equals or not key.strip() or not value.strip():
                raise ConfigError(
                    f"--search {text!r}: write key=low:high, key=low:high:log or key=[a, b, c], such as "
                    "ppo.learning_rate=1e-5:1e-2:log."
                )
        full = _full_key(config, key.strip())
        if full in given:
            raise ConfigError(f"--search {full} is given twice; give it once.")
        given[full] = value
    for key, value in given.items():
        yield key, _dimension(config, key, value)


def _full_key(config: RunConfig, key: str) -> str:
    """Return the dotted key of a field that may be searched; the last part of one will do where it is the only one."""
    fields = all_fields(config.env)
    run_fields = set(RunConfig.model_fields)
    if key not in fields and key not in run_fields:
        found = [full for full in fields if full.partition(".")[2] == key and config.choices.idle(full) is None]
        if len(found) != 1:
            hint = f"{key!r} may mean {' or '.join(found)}; write which." if found else unknown_key(key, config.choices)
            raise ConfigError(f"--search {key}: {hint}")
        key = found[0]
    section, _, name = key.partition(".")
    reason = FIXED.get(key) or FIXED.get(section)
    if section == "market" and name not in OPEN_IN_MARKET:
        reason = OF_THE_DATA
    if section == "params" and any(part in name for part in COSTS):
        reason = "it says what trading costs, and a search would find that it is best to trade for nothing"
    if section in run_fields and not name and reason is None:
        reason = f"it is a section; name one of its fields, such as {next(f for f in fields if f.startswith(section))}"
    if reason is not None:
        raise ConfigError(f"--search {key}: this field is fixed in a study: {reason}.")
    idle = config.choices.idle(key)
    if idle is not None:
        raise ConfigError(f"--search {key}: it would have no effect: {idle.reason}.")
    return key


def _dimension(config: RunConfig, key: str, value: Any) -> Dimension:
    field = all_fields(config.env)[key]
    where = f"--search {key}={value}"
    if isinstance(value, str) and ":" in value and not value.strip().startswith(("[", "{")):
        found = _range(key, value, where, _is_whole(field))
        # Both ends, and what lies between them: of yes and no, 0 and 1 are legal, and nothing else is.
        tried: Sequence[Any] = [found.at(share) for share in (0.0, 0.37, 1.0)]
    else:
        tried = _values(value, where)
        found = Dimension(key, choices=tuple(tried))
    for one in tried:  # refused in the words of the field itself
        try:
            load_run_config(config, {key: one})
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error
    return found


def _is_whole(field: Any) -> bool:
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    return bool(extra.get("whole")) or _takes_whole_numbers(field.annotation)


def _range(key: str, text: str, where: str, whole: bool) -> Dimension:
    low_text, _, rest = text.partition(":")
    high_text, _, scale = rest.partition(":")
    if scale.strip() not in ("", "log"):
        raise ConfigError(f"{where}: the scale is {scale!r}; write low:high, or low:high:log.")
    try:
        low, high = float(low_text), float(high_text)
    except ValueError as error:
        raise ConfigError(f"{where}: the ends of a range are numbers, such as 1e-5:1e-2:log.") from error
    log = scale.strip() == "log"
    if not (math.isfinite(low) and math.isfinite(high)) or not low < high:
        raise ConfigError(f"{where}: a range goes from a lower to a higher number, both finite.")
    if log and low <= 0.0:
        raise ConfigError(f"{where}: a logarithmic scale begins above 0.")
    if whole and (low != int(low) or high != int(high)):
        raise ConfigError(f"{where}: {key} takes whole numbers.")
    return Dimension(key, low, high, log, whole)


def _values(value: Any, where: str) -> list[Any]:
    if isinstance(value, str):
        text = value.strip()
        value = parse_value(text if text.startswith("[") else f"[{text}]", where)
    values = list(value) if isinstance(value, list | tuple) else [value]
    if len(values) < 2 or len(values) > MOST_CHOICES or any(values.count(one) > 1 for one in values):
        raise ConfigError(
            f"{where}: a list to choose from has 2 to {MOST_CHOICES:,} different values; a single one is fixed by "
            "key=value in place of --search."
        )
    return values


def starting_point(config: RunConfig, space: Space) -> dict[str, Any]:
    """Return what the configuration itself has for the fields that are searched."""
    used = dotted(config.content())
    return {one.key: used.get(one.key) for one in space}
