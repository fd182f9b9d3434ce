"""How one environment of another library is made: from an id, a class or a callable, also in another process."""

from __future__ import annotations

import contextlib
import copy
import pickle
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import gymnasium
from gymnasium.envs.registration import EnvSpec

from velodrome.errors import BackendError, ConfigError, ConfigTypeError, did_you_mean, sentence

OF_MAKE = ("max_episode_steps", "disable_env_checker")  # what gymnasium.make takes itself


class EnvMaker:
    """Makes an environment when called. It is pickled by value, so that workers need not be able to import it."""

    def __init__(self, env: Any, params: dict[str, Any]) -> None:
        self.name = name_of(env)
        self.source, self.params = env, dict(params)
        found = _imported(env) if isinstance(env, str) else env
        if isinstance(found, str):
            # The specification itself is sent to workers, which do not have what this process has registered.
            try:
                self.source = gymnasium.spec(found)
            except gymnasium.error.NameNotFound as error:
                raise unknown_environment(env) from error
            except gymnasium.error.Error as error:
                raise ConfigError(f"env = {env!r}: {error}") from error
        elif callable(found) or isinstance(found, EnvSpec):
            self.source = found
        else:
            raise no_environment(env)

    def __call__(self, checked: bool = True) -> gymnasium.Env:
        """Make an environment; `checked` lets Gymnasium check its first steps, if it was made by id."""
        if self.specification is not None:
            env = gymnasium.make(self.source, disable_env_checker=None if checked else True, **self.params)
        else:
            env = self.source(**self.params)
        if not isinstance(env, gymnasium.Env):
            raise ConfigError(
                f"{self.name} made {type(env).__module__}.{type(env).__qualname__}, which is not a gymnasium.Env. "
                f"Environments of the old gym package: wrap them with shimmy; a World is made known by vd.register_env."
            )
        return env

    @property
    def specification(self) -> Any:
        """What Gymnasium makes the environment from; None if that is a class or a callable."""
        return self.source if isinstance(self.source, EnvSpec) else None

    def without_own(self, made: EnvSpec | None) -> EnvSpec | None:
        """Return the specification of an environment made here, without what this maker has itself: it may be large."""
        if made is None or self.specification is None:
            return made
        return replace(made, entry_point=None, vector_entry_point=None, kwargs={})

    def with_own(self, made: EnvSpec | None) -> EnvSpec | None:
        """Return the specification that `without_own` was given."""
        own = self.specification
        if made is None or own is None:
            return made
        params = {name: value for name, value in self.params.items() if name not in OF_MAKE}
        places = {"entry_point": own.entry_point, "vector_entry_point": own.vector_entry_point}
        return replace(made, **places, kwargs={**own.kwargs, **params})

    def __getstate__(self) -> dict[str, Any]:
        import cloudpickle

        spec = self.specification
        source, layers = (self.source, {}) if spec is None else (portable(spec), wrappers_of_the_script(spec))
        try:
            return {"name": self.name, "pickled": cloudpickle.dumps((source, self.params, layers))}
        except Exception as error:
            raise UnpicklableError(f"{self.name} cannot be sent to another process: {error}") from error

    def __setstate__(self, state: dict[str, Any]) -> None:
        import cloudpickle

        self.name = state["name"]
        self.source, self.params, layers = cloudpickle.loads(state["pickled"])
        for name, layer in layers.items():
            vars(sys.modules["__main__"]).setdefault(name, layer)


class Registered(NamedTuple):
    """What a process has registered with Gymnasium, for workers, which run neither its script nor its imports.

    A function that makes an environment by its id, as programs for Gymnasium and Stable-Baselines3 have it, finds the
    same environment there. Each specification is packed by itself: one that cannot be loaded keeps no other away.
    """

    packed: Mapping[str, bytes]

    def register(self) -> None:
        """Register all with Gymnasium in this process."""
        for name, spec in self.packed.items():
            # It may belong to a package that cannot be imported here; who asks for its id is told that there is none.
            with contextlib.suppress(Exception):
                gymnasium.registry[name] = pickle.loads(spec)


def registered_here() -> Registered:
    """Return what is registered in this process and can be sent to another."""
    import cloudpickle

    packed = {}
    for name, spec in list(gymnasium.registry.items()):
        with contextlib.suppress(Exception):
            packed[name] = cloudpickle.dumps(portable(spec))
    return Registered(packed)


def portable(spec: EnvSpec) -> EnvSpec:
    """Return a specification in which a class of this process's script stands itself, where it was named."""
    place = spec.entry_point
    if not isinstance(place, str) or not place.startswith("__main__:"):
        return spec
    moved = copy.copy(spec)
    moved.entry_point = getattr(sys.modules["__main__"], place.removeprefix("__main__:"), place)
    return moved


def wrappers_of_the_script(spec: EnvSpec) -> dict[str, Any]:
    """Return the classes of this process's script with which a specification wraps, where Gymnasium looks for them."""
    places = [layer.entry_point for layer in spec.additional_wrappers]
    names = [place.removeprefix("__main__:") for place in places if place.startswith("__main__:")]
    own = vars(sys.modules["__main__"])
    return {name: own[name] for name in names if name in own}


def name_of(env: Any) -> str:
    """Return what an environment is called: its id, or the name of its class or function."""
    if isinstance(env, EnvSpec):
        return env.id
    named = env.func if isinstance(env, partial) else env
    return env if isinstance(env, str) else getattr(named, "__qualname__", type(named).__name__)


class UnpicklableError(BackendError):
    """An environment that cannot be made in another process."""


def environment_makers(env: Any, params: dict[str, Any]) -> list[EnvMaker]:
    """Return what makes the environments: one for all, or one for each where a sequence of them is given."""
    if isinstance(env, Sequence) and not isinstance(env, str):
        if not env:
            raise ConfigError("env is an empty list: give an id, a class or a callable, or one for each environment")
        return [EnvMaker(each, params) for each in env]
    return [env if isinstance(env, EnvMaker) else EnvMaker(env, params)]


def is_foreign(env: Any) -> bool:
    """Return whether this is an environment of another library: an id that is not a rule's, a specification,
    a class or a callable.

    A name that neither the catalogue nor Gymnasium knows is refused.
    """
    # Workers import this module and have no use for the catalogue.
    from velodrome.envs.catalog import CATALOG
    from velodrome.envs.contract import World

    if isinstance(env, World):
        return False
    if isinstance(env, gymnasium.Env | gymnasium.vector.VectorEnv):
        raise no_environment(env)
    if isinstance(env, str):
        if env not in CATALOG and not _gymnasium_knows(env):
            raise unknown_environment(env)
        return env not in CATALOG
    if not callable(env) and not isinstance(env, EnvMaker | EnvSpec | list | tuple):
        raise no_environment(env)
    return True


def no_environment(env: Any) -> ConfigTypeError:
    """Return what to say about something of which no environments can be made."""
    if isinstance(env, gymnasium.Env):
        own = type(env.unwrapped).__name__
        return ConfigTypeError(
            f"env is one environment, {env}, and others are to be made: give its class ({own}), its id, or a function "
            f"that makes it (lambda: {own}(…))"
        )
    if isinstance(env, gymnasium.vector.VectorEnv):
        return ConfigTypeError(
            f"env is a vector environment already, {env}; vd.from_gymnasium, vd.to_sb3 and vd.VecMonitor take it so"
        )
    return ConfigTypeError(
        f"env = {env!r}: needs the name of an environment, a World, the id or spec of a Gymnasium environment, a class "
        "or a function that makes one, or a list of those"
    )


def unknown_environment(env: str) -> ConfigError:
    """Return what to say about a name that is no environment's: the nearest one, and what is legal."""
    from velodrome.envs.catalog import CATALOG

    own = CATALOG.names()
    if env.startswith("__main__:"):
        return ConfigError(
            f"env = {env!r}: it was defined in the script that trained it, which is not this program. Move it to a "
            "module of its own, which the script imports, and train with that."
        )
    module, _, name = env.rpartition(":")
    near = did_you_mean(name, (*own, *gymnasium.registry))
    if module in sys.modules:
        there = did_you_mean(name, (each for each, value in vars(sys.modules[module]).items() if callable(value)))
        if there or not near:
            return ConfigError(
                f"env = {env!r}: the module {module!r} has no {name!r}, and registers no such environment with "
                f"Gymnasium.{there} Name a class or a function in it that makes an environment."
            )
    return ConfigError(
        f"env = {env!r}: there is no such environment.{near} Legal: {', '.join(own)}, an environment registered with "
        "Gymnasium such as CartPole-v1, module:Class or module:function of your own, or module:Name-v1 to import a "
        "module first."
    )


def _imported(name: str) -> Any:
    """Return the class or function of "module:Name", or the id of "module:Id" that the module has registered.

    Any other name is returned as it is.
    """
    module, _, own = name.rpartition(":")
    if not module:
        return name
    try:
        found: Any = import_module(module)
    except ImportError as error:
        raise ConfigError(f"env = {name!r}: the module {module!r} cannot be imported: {sentence(error)}") from error
    if own in gymnasium.registry:
        return own
    for part in own.split("."):
        found = getattr(found, part, None)
    return found if callable(found) else own


def _gymnasium_knows(name: str) -> bool:
    if ":" in name:  # "module:Id" imports the module that registers the id
        return True
    try:
        gymnasium.spec(name)
    except gymnasium.error.Error as error:
        # Gymnasium explains a missing version or package better than we could.
        return isinstance(error, gymnasium.error.VersionNotFound | gymnasium.error.DeprecatedEnv)
    return True
