"""Which environments a run can name, whether they need a market, and the check of their own parameters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from velodrome.envs.catalog import CATALOG, Data
from velodrome.errors import ConfigError, did_you_mean
from velodrome.runs.config.fields import unknown_key

if TYPE_CHECKING:
    from velodrome.envs.parameters import EnvConfig


def check_environment(env: str) -> None:
    """Refuse a name that is neither in the catalogue nor registered with Gymnasium; module:Name is looked up later."""
    import gymnasium

    if env in CATALOG or env in gymnasium.registry or ":" in env:
        return
    own = CATALOG.names()
    legal = (*own, *gymnasium.registry)
    raise ConfigError(
        f"env = {env!r}: there is no such environment.{did_you_mean(env, legal)} Legal: {', '.join(own)}, an "
        "environment registered with Gymnasium such as CartPole-v1, or module:Name-v1 to import a module first."
    )


def is_rule(env: str) -> bool:
    """Return whether an environment is one of the catalogue, compiled from its rule."""
    return env in CATALOG


def takes_market(env: str) -> bool:
    """Return whether an environment plays on price data: a market, or a basket."""
    return price_data(env) is not None


def takes_basket(env: str) -> bool:
    """Return whether an environment plays on a basket: several instruments on one grid."""
    return price_data(env) == "basket"


def price_data(env: str) -> Data | None:
    """Return what an environment plays on: "market", "basket" or None."""
    return CATALOG.get(env).data if env in CATALOG else None


def parameter_model(env: str) -> type[EnvConfig] | None:
    """Return the model that declares an environment's parameters, None where there is none."""
    return CATALOG.get(env).parameter_model() if env in CATALOG else None


def parameter_presets(env: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the presets of an environment's parameters by name."""
    return CATALOG.get(env).parameter_presets() if env in CATALOG else {}


def parameter_names(env: str) -> tuple[str, ...]:
    """Return the legal names of an environment's parameters; none where they are not known."""
    model = parameter_model(env)
    own = tuple(model.model_fields) if model else ()
    return ("preset", *own) if parameter_presets(env) else own


def checked_parameters(env: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that were given, checked, as plain JSON values."""
    model = parameter_model(env)
    if model is None:
        return _plain(given)
    legal = parameter_names(env)
    for name in given:
        if name not in legal:
            raise ConfigError(f"{unknown_key(f'params.{name}', legal)} They are parameters of {env!r}.")
    made = _made(env, model, given)
    kept = made.model_dump(mode="json", include=set(given) - {"preset"})
    return {"preset": given["preset"], **kept} if given.get("preset") is not None else kept


def resolved_parameters(env: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return every parameter of an environment, with presets and defaults filled in, as plain JSON values."""
    model = parameter_model(env)
    return _plain(given) if model is None else _made(env, model, given).model_dump(mode="json")


def _made(env: str, model: type[EnvConfig], given: Mapping[str, Any]) -> EnvConfig:
    presets, values = parameter_presets(env), dict(given)
    preset = values.pop("preset", None)
    if preset is not None and preset not in presets:
        raise ConfigError(
            f"params.preset = {preset!r}: there is no such preset of {env!r}; there are {', '.join(presets)}."
            f"{did_you_mean(str(preset), presets)}"
        )
    for name, value in values.items():
        if callable(value):
            raise ConfigError(
                f"params.{name} is the function {getattr(value, '__qualname__', value)}; a run's configuration is kept "
                "as text, so that it can be resumed: use a value that has a name."
            )
    try:
        return model.create(**{**(presets[preset] if preset is not None else {}), **values})
    except ConfigError as error:
        cause = error.__cause__
        about_one = isinstance(cause, ValidationError) and bool(cause.errors()[0]["loc"])
        raise ConfigError(f"params.{error}" if about_one else f"params: {error}") from error


def _plain(given: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return json.loads(json.dumps(dict(given)))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"params = {dict(given)!r}: a run's configuration is kept as text; use numbers, texts, lists and mappings."
        ) from error
