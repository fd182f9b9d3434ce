"""The environments that Velodrome knows by name. An entry says everything that the rest of the package asks of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from velodrome.errors import ConfigError
from velodrome.registry import Registry, load

if TYPE_CHECKING:
    from velodrome.envs.contract import World
    from velodrome.envs.parameters import EnvConfig

NO_REGISTRATION = "An environment of Gymnasium needs no registration: vd.make_vec(MyEnv, 8), vd.train(env=MyEnv)."

Data = Literal["market", "basket"]
DATA = ("market", "basket", None)


@dataclass(frozen=True)
class EnvEntry:
    """One environment. What is given as text, "module:name", is imported when it is first needed."""

    name: str
    world: str | Callable[..., World]  # takes the environment's parameters (and `market`, `split`), returns its World
    summary: str = ""  # one line for people
    parameters: str | type[EnvConfig] | None = None  # the model that declares its parameters; None: checked when made
    presets: str | Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of parameters, by name
    data: Data | None = None  # what it plays on: instruments by themselves, several on one grid, or no prices at all
    evaluator: str | Callable[..., Any] | None = None  # a kind of evaluation.evaluator.Evaluator; None: the general one
    benchmark: str | Callable[..., Any] | None = None  # subclass of bench.step.StepBenchmark; None: it measures any
    official: str | Callable[..., Any] | None = None  # what `velodrome eval --official` plays; see runs/official.py
    # (market, params) -> a rule to begin with, or why there is none. With teacher.bars=half also half=seed.
    teacher: str | Callable[..., Any] | None = None

    def make_world(self, **values: Any) -> World:
        """Return the World that these parameters make, on top of those of a `preset` if the entry has presets."""
        if presets := self.parameter_presets():
            from velodrome.envs.parameters import with_preset

            preset = values.pop("preset", None)
            values = with_preset(presets, preset, values, self.parameter_model())
        from velodrome.envs.contract import World

        made = self._world_function()(**values)
        if not isinstance(made, World):
            raise ConfigError(
                f"environment {self.name!r}: its `world` returned {type(made).__qualname__}, which is no "
                f"velodrome.envs.contract.World. {NO_REGISTRATION}"
            )
        return made

    def _world_function(self) -> Callable[..., Any]:
        try:
            return load(self.world)
        except (ImportError, AttributeError) as error:
            told = f"environment {self.name!r}: world = {self.world!r} cannot be imported: {error}"
            raise ConfigError(told) from error

    def parameter_model(self) -> type[EnvConfig] | None:
        """Return the model of its parameters, None where they are checked only when it is made."""
        return load(self.parameters)

    def parameter_presets(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the presets of its parameters by name."""
        return load(self.presets)


def _check(entry: EnvEntry) -> None:
    if entry.data not in DATA:
        raise ConfigError(f"environment {entry.name!r}: data = {entry.data!r}; legal: 'market', 'basket', None")
    if not isinstance(entry.name, str) or not entry.name:
        raise ConfigError(f"the name of an environment must be a text, received {entry.name!r}")
    named = isinstance(entry.world, str)
    if not callable(entry.world) and not (named and all(entry.world.partition(":"))):
        raise ConfigError(
            f"environment {entry.name!r}: world = {entry.world!r}; it must be a function that returns a World, or "
            "'module:name' of one"
        )
    import gymnasium

    if isinstance(entry.world, type) and issubclass(entry.world, gymnasium.Env):
        raise ConfigError(f"environment {entry.name!r}: {entry.world.__qualname__} makes no World. {NO_REGISTRATION}")
    if entry.name in gymnasium.registry:
        raise ConfigError(f"environment {entry.name!r} is Gymnasium's, which would be hidden; choose another name")


CATALOG = Registry(
    "environment",
    "velodrome.envs",
    (
        EnvEntry(
            "trading",
            "velodrome.envs.trading.world:trading_world",
            "one instrument, one account",
            parameters="velodrome.envs.trading.config:TradingConfig",
            presets="velodrome.envs.trading.config:PRESETS",
            data="market",
            evaluator="velodrome.evaluation.trading.evaluator:TradingEvaluator",
            teacher="velodrome.evaluation.trading.teacher:teacher",
            benchmark="velodrome.bench.problems.trading:TradingBenchmark",
        ),
        EnvEntry(
            "portfolio",
            "velodrome.envs.portfolio.world:portfolio_world",
            "many instruments, one account",
            parameters="velodrome.envs.portfolio.config:PortfolioConfig",
            presets="velodrome.envs.portfolio.config:PRESETS",
            data="basket",
            evaluator="velodrome.evaluation.portfolio.evaluator:PortfolioEvaluator",
            teacher="velodrome.evaluation.portfolio.teacher:teacher",
            benchmark="velodrome.bench.problems.portfolio:PortfolioBenchmark",
        ),
        EnvEntry(
            "cage2",
            "velodrome.envs.cage2:cage2_world",
            "defend a network of 13 hosts: CAGE Challenge 2",
            parameters="velodrome.envs.cage2.config:Cage2Config",
            official="velodrome.evaluation.cage2.official:play_official",
            benchmark="velodrome.bench.problems.cage2:Cage2Benchmark",
        ),
        EnvEntry(
            "template",
            "velodrome.envs._template:template_world",
            "the smallest legal environment, made to be copied",
            parameters="velodrome.envs._template:TemplateConfig",
        ),
    ),
    _check,
)


def register_env(
    name: str,
    world: str | Callable[..., World],
    *,
    summary: str = "",
    parameters: str | type[EnvConfig] | None = None,
    presets: str | Mapping[str, Mapping[str, Any]] | None = None,
    data: Data | None = None,
    evaluator: str | Callable[..., Any] | None = None,
    benchmark: str | Callable[..., Any] | None = None,
    official: str | Callable[..., Any] | None = None,
    teacher: str | Callable[..., Any] | None = None,
    replace: bool = False,
) -> EnvEntry:
    """Make an environment known by name, so that it is trained, evaluated and benchmarked like Velodrome's own.

    world: a function that takes the environment's parameters and returns its World, or "module:name" of one.
    data: "market" or "basket" if it plays on prices; its function then takes `market` and `split`, too.
    A package does the same with an entry point of the group `velodrome.envs` that is an EnvEntry or returns one.
    """
    entry = EnvEntry(name, world, summary, parameters, presets or {}, data, evaluator, benchmark, official, teacher)
    CATALOG.add(entry, replace=replace)
    return entry
