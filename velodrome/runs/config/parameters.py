"""The environment that a run names: what the catalogue says about it, and the check of its own parameters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from velodrome.envs.catalog import CATALOG, Data, EnvEntry
from velodrome.envs.parameters import covered_names, with_preset
from velodrome.errors import ConfigError
from velodrome.runs.config.sections import setting

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from velodrome.envs.parameters import EnvConfig


def is_known(env: str) -> bool:
    """Return whether the catalogue or Gymnasium knows an environment; module:Name is looked up later."""
    import gymnasium

    return env in CATALOG or ":" in env or env in gymnasium.registry


def environment_name(env: Any) -> Any:
    """Return the text "module:Class" of an environment's class or function, and the id of a specification.

    Anything else is returned as it is.
    """
    if isinstance(env, str):  # as in every file, for which Gymnasium need not be imported
        return env
    from gymnasium.envs.registration import EnvSpec, registry

    if isinstance(env, EnvSpec):
        if registry.get(env.id) != env:
            raise ConfigError(
                f"env is a specification of {env.id} that differs from the registered one, and a configuration "
                "of a run is kept as text: give the id, and what differs as params={…}, or a function that makes it."
            )
        return env.id
    if not callable(env):
        return env
    module, name = getattr(env, "__module__", None), getattr(env, "__qualname__", "<no name>")
    if module is None or not name.replace(".", "").isidentifier():
        raise ConfigError(
            f"env = {env!r}: a run's configuration is kept as text, so that the run can be resumed and evaluated, and "
            "this has no name in a module. Give a class or a function from the top level of one, and what it takes as "
            "params={…}."
        )
    return f"{module}:{name}"


def known_environment(env: str) -> str:
    """Return a name that is known, and refuse others."""
    if is_known(env):
        return env
    from velodrome.vector.workers.env_maker import unknown_environment

    raise unknown_environment(env)


def is_rule(env: str) -> bool:
    """Return whether an environment is in the catalogue: a rule that Velodrome compiles."""
    return env in CATALOG


def price_data(env: str) -> Data | None:
    """Return what an environment plays on: "market", "basket" or None."""
    return CATALOG.get(env).data if env in CATALOG else None


def _declared(env: str) -> tuple[EnvEntry, type[EnvConfig]] | None:
    """Return an environment's entry and the model of its parameters, None where they are not declared."""
    entry = CATALOG.get(env) if env in CATALOG else None
    model = entry.parameter_model() if entry else None
    return (entry, model) if entry and model else None


def parameter_fields(env: str) -> dict[str, FieldInfo]:
    """Return the fields of an environment's parameters, `preset` first if there are any; none where not declared."""
    declared = _declared(env)
    if declared is None:
        return {}
    entry, model = declared
    legal = ", ".join(entry.parameter_presets())
    if not legal:
        return dict(model.model_fields)
    meaning = f"set of parameters of {env} to start from; those named beside it win"
    return {"preset": setting(None, meaning, legal=f"one of {legal}, or null"), **model.model_fields}


def preset_parameters(env: str, preset: Any) -> Mapping[str, Any]:
    """Return the parameters that a set of an environment has; none where there is no such set."""
    declared = _declared(env)
    return declared[0].parameter_presets().get(preset, {}) if declared and isinstance(preset, str) else {}


def same_parameters(env: str, name: str) -> tuple[str, ...]:
    """Return a parameter, those that it is a short way to write, and those that are a short way to write it."""
    declared = _declared(env)
    if declared is None:
        return (name,)
    fields, model = declared[1].model_fields, declared[1]
    shorter = [other for other in fields if name in covered_names(model, other)]
    return (name, *(covered_names(model, name) if name in fields else ()), *shorter)


def softmax_of_actions(env: str, given: Mapping[str, Any]) -> float | None:
    """Return by what actions are multiplied before a softmax makes weights of them; None where none does."""
    return None if (own := _resolved(env, given)) is None else own.softmax_of_actions


def longest_episode(env: str, given: Mapping[str, Any]) -> int | None:
    """Return how many steps an episode can take at most, None where that is not known before one is played."""
    if is_rule(env):
        length = getattr(_resolved(env, given), "episode_length", None)
        return length[1] if isinstance(length, tuple) else length
    if "max_episode_steps" in given:
        return given["max_episode_steps"]
    import gymnasium

    found = gymnasium.registry.get(env)
    return None if found is None else found.max_episode_steps


def checked_parameters(env: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that were given, checked, as plain JSON values."""
    preset = {"preset": given["preset"]} if given.get("preset") is not None else {}
    return {**preset, **{name: value for name, value in resolved_parameters(env, given).items() if name in given}}


def resolved_parameters(env: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return every parameter of an environment, with its preset and defaults filled in, as plain JSON values."""
    try:
        resolved = _resolved(env, given)
        if resolved is None:
            return json.loads(json.dumps(dict(given)))
        found, model = resolved.model_dump(mode="json"), type(resolved)
        # A short way to write others that was not used says nothing: hashes stay those of before there was one.
        return {name: value for name, value in found.items() if name in given or not covered_names(model, name)}
    except ConfigError as error:
        cause = error.__cause__
        about_one = isinstance(cause, ValidationError) and bool(cause.errors()[0]["loc"])
        raise ConfigError(f"params.{error}" if about_one else f"params: {error}") from error
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"params = {dict(given)!r}: a run's configuration is kept as text, so that the run can be resumed; use "
            "numbers, texts, lists and mappings, and a name in place of a function."
        ) from error


def _resolved(env: str, given: Mapping[str, Any]) -> EnvConfig | None:
    """Return the parameters of an environment with preset and defaults; None where they are not declared."""
    declared = _declared(env)
    if declared is None:
        return None
    (entry, model), own = declared, dict(given)
    preset = own.pop("preset", None)
    return model.create(**with_preset(entry.parameter_presets(), None if preset is None else str(preset), own, model))
