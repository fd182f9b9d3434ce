"""`vd.train_population`: train members side by side, and let the worst go on as the best do, with other settings.

A round is a stretch of training, after which all members are played on the validation split. Each that gives way is
followed by a child of a better one: a run that begins at its checkpoint, with a seed and settings of its own. Members
are ordinary runs in the population's folder, beside `population.json`, from which an interrupted population goes on.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from velodrome.bars.summary import Summarised, Summary
from velodrome.errors import ConfigError, RunError, sentence
from velodrome.evaluation.sharpe import Trials
from velodrome.learn.catalog import ALGORITHMS
from velodrome.outside.screen import Screen
from velodrome.runs import checkpoint as checkpoints
from velodrome.runs import setup
from velodrome.runs.bucket.place import here
from velodrome.runs.config.changes import changes_between
from velodrome.runs.config.explain import value_text
from velodrome.runs.config.files import GIVEN, Source, load_run_config, load_with_origins
from velodrome.runs.config.parameters import price_data
from velodrome.runs.config.run_config import RunConfig, dotted
from velodrome.runs.evaluate import evaluate as evaluate_run
from velodrome.runs.folder import RunFolder, folder_name, new_identity
from velodrome.runs.live.display import choose_mode
from velodrome.runs.run import resume
from velodrome.runs.store.from_folder import steps_of
from velodrome.runs.together.processes import (
    Job,
    processes_for,
    seen_in,
    told_by_its_folder,
    train_together,
    worth_apart,
)
from velodrome.runs.trained import EPISODES, Run, check_source, run_name
from velodrome.tune.outcome import PER_BAR, legal_score, played, write
from velodrome.tune.population.evolution import first_settings, heirs, moved
from velodrome.tune.population.kept import FILE, Member, best_of, is_judged, rank, read, written
from velodrome.tune.space import Space, space_of
from velodrome.vector.argument_checks import checked_count
from velodrome.writing import replace_text

if TYPE_CHECKING:
    from rich.console import Console

    from velodrome.bars.frame import Bars
    from velodrome.evaluation.result import Evaluation
    from velodrome.runs.live.display import Mode
    from velodrome.tables.basket import Basket
    from velodrome.tables.market import Market

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
FEWEST, MOST = 2, 1_000  # members


@dataclass(frozen=True, repr=False)
class Population(Summarised):
    """A population that was trained."""

    path: Path
    score: str  # the figure that members are compared by
    rounds: tuple[tuple[Member, ...], ...]  # by round, as far as they have come
    status: str  # "finished", or "interrupted": the same call goes on
    evaluation: Evaluation | None = None  # of the best, on data that chose nothing

    @property
    def members(self) -> tuple[Run, ...]:
        """The runs of the latest round."""
        return tuple(Run.open(self.path / member.run) for member in self.rounds[-1])

    @property
    def best(self) -> Run:
        """The run that did best on the validation split when its last round was over."""
        best = best_of(self.rounds)
        if best is None:
            raise RunError(f"{self.path}: no round is over yet. Call train_population again with its name to go on.")
        return Run.open(self.path / best.run)

    def summary(self) -> Summary:
        """Return the members of every round, the best first."""
        rows = []
        for number, each in enumerate(self.rounds):
            for member in sorted(each, key=rank, reverse=True):
                taken = "" if member.parent is None else self.rounds[number - 1][member.parent].run
                rows.append((f"{number + 1}", member.run, _told(member.settings), taken, f"{member.score:.4g}"))
        line = f"population of {len(self.rounds[-1])}, round {len(self.rounds)}, {self.status}: {self.path}"
        return Summary(line, ("round", "run", "settings", "taken over from", self.score), tuple(rows))


def _told(settings: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{key}={f'{value:.4g}' if isinstance(value, float) else value_text(value)}" for key, value in settings.items()
    )


def train_population(
    config: Source = None,
    members: int = 8,
    *,
    rounds: int = 10,
    search: Sequence[str] | Mapping[str, Any] = (),
    search_only: bool = False,
    score: str | None = None,
    name: str | None = None,
    processes: int | None = None,
    market: Market | Basket | Mapping[str, Any] | None = None,
    bars: Bars | Source | None = None,
    console: Console | None = None,
    mode: Mode | None = None,
    evaluate: bool = True,
    trust: bool = False,
    **overrides: Any,
) -> Population:
    """Train agents side by side; after every round the worst quarter goes on from the best, with settings near theirs.

    So settings such as the learning rate are found while agents train, and change as they do, at the price of `members`
    trainings (Jaderberg et al., Population based training of neural networks, 2017).

    config, overrides, market, bars: as for `vd.train`; `steps` are those of each member. A field that is given a value
        here keeps it.
    rounds: stretches that the steps are divided into.
    search: ranges or values of fields, as for `vd.tune`, in place of those that are declared beside them; only what a
        run may change in mid-training can be searched. search_only: nothing else.
    score: figure of the validation split by which members are compared; the Sharpe ratio where there is an account.
    name: of the population's folder. A population of this name that was interrupted, or killed, goes on.
    processes: members that train at once; as many as pay off if None.
    evaluate: play the best member on the final split, once, and write its report.
    """
    counts = {"members": members, "rounds": rounds} | ({} if processes is None else {"processes": processes})
    for what, number in counts.items():
        checked_count(what, number)
    if name is not None and not NAME.fullmatch(name):
        raise ConfigError(f"name = {name!r}: a population's folder is called by letters, digits, '.', '_' and '-'.")
    if isinstance(market, Mapping | str | Path):  # of the last two the section says what to write
        overrides["market"], market = market, None
    if bars is None:
        chosen, origins = load_with_origins(config, overrides, own_data=market is not None)
    else:
        chosen, origins = setup.with_bars(config, overrides, bars)
    check_source(config, chosen, trust)
    _check(chosen, members, rounds)
    chosen.usable_device()
    if market is None:
        chosen, built, _ = setup.market_to_train_on(chosen)
    else:
        built = setup.build_market(chosen, market)
    setup.check_rule_actions(chosen, built)
    chosen = _as_member(chosen)
    space = _changeable_space(chosen, search, [key for key, origin in origins.items() if origin == GIVEN], search_only)
    console = console or Screen()
    mode = mode or choose_mode(console)
    root = here(chosen.logging.folder)
    folder = root / (name or folder_name(f"population-{run_name(chosen)}", time.time(), new_identity()))
    own = load_run_config(chosen, {"logging.folder": str(folder)})
    plan = Plan(folder, own, space, legal_score(score, chosen, built), members, rounds)
    carrier = Carrier(plan, built, console, mode, processes)
    finished = carrier.go()
    population = Population(folder, plan.score, carrier.history(), "finished" if finished else "interrupted")
    tells = mode in ("live", "plain")
    if finished and evaluate and (built is None or chosen.evaluation.final_split is not None):
        population = replace(population, evaluation=_tested(population, built, mode))
        if tells and population.evaluation is not None:
            console.print(population.evaluation.table())
    elif not finished and tells:
        console.print(f"interrupted and saved; go on: train_population(…, name={folder.name!r})", soft_wrap=True)
    return population


def _tested(population: Population, market: Market | Basket | None, mode: Mode) -> Evaluation:
    """Return the best member's result on the final split: the one that is there, or its first look."""
    from velodrome.evaluation.result import Evaluation

    best = population.best
    with contextlib.suppress(ConfigError):  # there is none yet; one that cannot be read is told, and not made anew
        return Evaluation.load(best.path, best.config.evaluation.final_split or EPISODES)
    sharpe_ratios = [one.per_bar for one in population.rounds[-1] if one.per_bar is not None]
    trials = Trials.of(sharpe_ratios) if len(sharpe_ratios) > 1 else None
    return evaluate_run(best, market=market, trials=trials, progress=mode == "live")


def _check(config: RunConfig, members: int, rounds: int) -> None:
    """Refuse what no population can be made of."""
    if not FEWEST <= members <= MOST:
        raise ConfigError(f"members = {members}: a population has {FEWEST} to {MOST:,}.")
    most = config.steps // (config.num_envs * getattr(config.learner, "rollout_length", 1))
    if not 1 <= rounds <= most:
        raise ConfigError(
            f"rounds = {rounds}: {config.steps:,} steps can be divided into 1 to {most:,}, of one rollout at least."
        )
    if config.trainings > 1:
        many = "seeds" if config.seeds > 1 else "ensemble"
        raise ConfigError(f"{many} = {config.trainings}: the members of a population are single agents. Leave it out.")
    if price_data(config.env) is not None and config.evaluation.split is None:
        raise ConfigError("evaluation.split = null: members are compared on that split. Name one, such as validation.")


def _as_member(config: RunConfig) -> RunConfig:
    """Return the settings of members: the population validates them, and ends them all alike."""
    return load_run_config(config, {"evaluation.every_steps": None, "evaluation.patience": None})


def _changeable_space(
    config: RunConfig, search: Sequence[str] | Mapping[str, Any], fixed: Sequence[str], only: bool
) -> Space:
    """Return what members differ in: what is searched by a study and may be changed in mid-training."""
    legal = {f"{config.algorithm}.{name}" for name in ALGORITHMS.get(config.algorithm).changeable}
    told = [one.key for one in space_of(config, search, only=True)] if search else []
    if wrong := [key for key in told if key not in legal]:
        raise ConfigError(
            f"search: {wrong[0]} cannot change while an agent learns; of {config.algorithm} that can "
            f"{', '.join(sorted(legal))}. Try {wrong[0]} by a study: vd.tune."
        )
    space = tuple(one for one in space_of(config, search, fixed, only) if one.key in legal)
    if not space:
        raise ConfigError(
            "nothing is left to search: every field that may change in mid-training was given a value. Leave one out, "
            f"or give a range: search=['{config.algorithm}.learning_rate=1e-4:1e-2:log']"
        )
    return space


class Plan(NamedTuple):
    """What a population is told; another one under its name is refused."""

    folder: Path
    config: RunConfig  # of its members, but for what is searched
    space: Space
    score: str
    members: int
    rounds: int

    def content(self) -> dict[str, Any]:
        """Return it in plain values, as its file has it."""
        space = json.loads(json.dumps([one.content() for one in self.space]))
        told = {"config": self.config.hash, "space": space, "score": self.score}
        return told | {"members": self.members, "rounds": self.rounds}


class Carrier:
    """Carries a population out, round by round; what it has come to is in its file after every step."""

    def __init__(
        self, plan: Plan, market: Market | Basket | None, console: Console, mode: Mode, processes: int | None
    ) -> None:
        self.plan, self.market, self.console, self.mode, self.processes = plan, market, console, mode, processes
        self.folder, self.config = plan.folder, plan.config
        self.done: list[list[Member]] = []  # by round; of the last one perhaps without scores

    def history(self) -> tuple[tuple[Member, ...], ...]:
        """Return the members of each round."""
        return tuple(map(tuple, self.done))

    def go(self) -> bool:
        """Train all rounds that are left; return whether they are done. Another process that trains them is refused."""
        self._read()
        if self._is_over:  # who only looks at it needs not be able to write there
            return True
        self.folder.mkdir(parents=True, exist_ok=True)
        with RunFolder(self.folder, self.folder.name).lock("population"):
            self._read()  # again: whoever had the lock until now may have gone on
            self._write()
            while not self._is_over:
                if not self.done or is_judged(self.done[-1]):
                    self._begin_round()
                if not self._train(self.done[-1]):
                    return False
                self._judge(self.done[-1])
        return True

    # What is kept

    def _read(self) -> None:
        found = read(self.folder)
        if found is None:
            return
        if wrong := [name for name, value in self.plan.content().items() if found.plan.get(name) != value]:
            raise ConfigError(
                f"{self.folder / FILE}: the population there has another {' and another '.join(wrong)}. Give it "
                "another name, or go on with what it was begun with."
            )
        self.done = found.rounds

    def _write(self) -> None:
        found = written(self.plan.content(), self.done)
        replace_text(self.folder / FILE, json.dumps(found, indent=1) + "\n")

    # A round

    @property
    def _is_over(self) -> bool:
        return len(self.done) == self.plan.rounds and is_judged(self.done[-1])

    def _random(self) -> np.random.Generator:
        """Return the random numbers of the round that begins: the same ones if it begins again after a kill."""
        return np.random.default_rng([self.config.seed, len(self.done)])

    def _begin_round(self) -> None:
        """Decide who goes on and who gives way, and make the runs of the new ones."""
        rng = self._random()
        if not self.done:
            given = dotted(self.config.content())
            begun = first_settings(self.plan.space, given, self.plan.members, rng)
            self.done.append([Member(self._new(number, own).path.name, own) for number, own in enumerate(begun)])
        else:
            before = self.done[-1]
            taken = heirs([member.score for member in before], rng)
            after = [Member(member.run, member.settings) for member in before]
            for number, parent in taken.items():
                settings = moved(before[parent].settings, self.plan.space, rng)
                run = self._child(number, before[parent], settings)
                after[number] = Member(run.path.name, settings, parent)
            self.done.append(after)
        self._write()

    def _new(self, number: int, settings: Mapping[str, Any]) -> Run:
        own = {"name": f"member-{number}", "seed": self.config.seed + number}
        return Run.create(load_run_config(self.config, {**settings, **own}), self.market)

    def _child(self, number: int, parent: Member, settings: Mapping[str, Any]) -> Run:
        """Begin a run at the checkpoint of a better one; it has a copy of that before the other goes on."""
        found = Run.open(self.folder / parent.run)
        begin = checkpoints.latest_valid(found.path)
        if begin is None:
            raise RunError(f"{found.path}: it has no checkpoint, so that no other member can go on from it.")
        seed = self.config.seed + self.plan.members * len(self.done) + number
        own = {"name": f"member-{number}-round-{len(self.done) + 1}", "seed": seed}
        wanted = load_run_config(found.config, {**settings, **own})
        changed, _ = changes_between(found.config, wanted, str(found.folder.config_path))
        child = found.child(wanted, changed, self.market, begin.steps)
        return resume(child, market=self.market, mode="quiet", evaluate=False, until=begin.steps)

    @property
    def _until(self) -> int:
        """The step at which the latest round ends."""
        return self.config.steps * len(self.done) // self.plan.rounds

    def _train(self, members: Sequence[Member]) -> bool:
        """Train all members to the end of the round; return whether all came there."""
        until = self._until
        left = [member for member in members if not self._is_there(member, until)]
        if self.mode in ("live", "plain") and left:
            self.console.print(f"round {len(self.done)} of {self.plan.rounds}, to step {until:,}", soft_wrap=True)
        while left:
            began = time.monotonic()
            member = left.pop(0)
            mode: Mode = "live" if self.mode == "live" else "quiet"
            resume(self.folder / member.run, market=self.market, mode=mode, evaluate=False, until=until)
            if not self._is_there(member, until):
                return False
            processes = self._processes(time.monotonic() - began, len(left))
            if processes > 1:
                return self._train_together(left, processes, until)
        return True

    def _is_there(self, member: Member, until: int) -> bool:
        run = Run.open(self.folder / member.run)
        return run.status == "finished" or steps_of(run.folder) >= until

    def _processes(self, seconds: float, left: int) -> int:
        """Return in how many processes to train the others; 1: go on in this one. seconds: that one member took."""
        if self.processes is not None:
            return min(self.processes, left)
        return worth_apart(processes_for(self.config, self.market, left), left, seconds)

    def _train_together(self, left: Sequence[Member], processes: int, until: int) -> bool:
        jobs = []
        for member in left:
            path = self.folder / member.run
            seen = functools.partial(seen_in, Run.open(path).folder)
            jobs.append(Job(member.run, _train_member, (path, until, self.market), until, seen))
        done, error = train_together(jobs, processes, self.console, "live" if self.mode == "live" else "quiet")
        if error is not None:
            raise type(error)(f"A member could not be trained: {sentence(error)} Go on with the same call.")
        return done and all(self._is_there(member, until) for member in left)

    def _judge(self, members: Sequence[Member]) -> None:
        """Play all members on the validation split."""
        for member in members:
            run = Run.open(self.folder / member.run)
            figures, returns = played(run.load_policy("latest"), run.config, self.market)
            write(run.path, figures, returns)  # for whoever asks what the choice among them is worth
            member.score, member.per_bar = float(figures[self.plan.score]), figures.get(PER_BAR)
        if not is_judged(members):
            raise RunError(
                f"{self.folder}: no member has a {self.plan.score} that is a number, so that none is the best."
            )
        self._write()
        if self.mode in ("live", "plain"):
            best = max(members, key=rank)
            told = f"best {self.plan.score} {best.score:.4g}, by {best.run}: {_told(best.settings)}"
            gave_way = sum(member.parent is not None for member in members)
            self.console.print(f"{told}{f'; {gave_way} had taken over' if gave_way else ''}", soft_wrap=True)


def _train_member(path: Path, until: int, market: Market | Basket | None) -> None:
    """Train a member, in a process of its own."""
    with told_by_its_folder():
        resume(path, market=market, mode="quiet", evaluate=False, until=until)
