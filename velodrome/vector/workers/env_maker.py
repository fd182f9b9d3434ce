"""What makes one foreign environment: a Gymnasium id, a class or a callable, in a form that travels to workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium

from velodrome.errors import BackendError, ConfigError


class EnvMaker:
    """Makes an environment when called. It is pickled by value, so that it need not be importable elsewhere."""

    def __init__(self, env: Any, params: dict[str, Any] | None = None) -> None:
        params = dict(params or {})
        self.name = env if isinstance(env, str) else getattr(env, "__qualname__", type(env).__name__)
        if isinstance(env, str):
            # The specification itself travels: what this process has registered, others have not.
            self.source: Any = _specification(env)
        elif callable(env):
            self.source = env
        else:
            raise ConfigError(
                f"env = {env!r}: needs the id of a Gymnasium environment, a class or a function that makes one"
            )
        self.params = params

    def __call__(self, checked: bool = True) -> gymnasium.Env:
        """Make an environment; `checked` has Gymnasium look at its first steps, where it knows the id."""
        if self.specification is not None:
            env = gymnasium.make(self.source, disable_env_checker=None if checked else True, **self.params)
        else:
            env = self.source(**self.params)
        if not isinstance(env, gymnasium.Env):
            raise ConfigError(
                f"{self.name} made {type(env).__module__}.{type(env).__qualname__}, which is no gymnasium.Env. "
                f"Environments of the old gym package: wrap them with shimmy."
            )
        return env

    @property
    def specification(self) -> Any:
        """What Gymnasium knows of the environment, None if it was not made by id."""
        return self.source if isinstance(self.source, gymnasium.envs.registration.EnvSpec) else None

    def __getstate__(self) -> dict[str, Any]:
        import cloudpickle

        try:
            return {"name": self.name, "pickled": cloudpickle.dumps((self.source, self.params))}
        except Exception as error:
            raise UnpicklableError(f"{self.name} cannot be sent to another process: {error}") from error

    def __setstate__(self, state: dict[str, Any]) -> None:
        import cloudpickle

        self.name = state["name"]
        self.source, self.params = cloudpickle.loads(state["pickled"])


class UnpicklableError(BackendError):
    """An environment that cannot be made in another process."""


def _specification(name: str) -> Any:
    try:
        return gymnasium.spec(name)
    except gymnasium.error.Error as error:
        raise ConfigError(f"env = {name!r}: {error}") from error


def environment_makers(env: Any, params: dict[str, Any]) -> list[EnvMaker]:
    """Return what makes the environments: one for all, or one for each where a sequence of them is given."""
    if isinstance(env, Sequence) and not isinstance(env, str):
        if not env:
            raise ConfigError("env is an empty list: give an id, a class or a callable, or one for each environment")
        return [EnvMaker(each, params) for each in env]
    return [env if isinstance(env, EnvMaker) else EnvMaker(env, params)]
