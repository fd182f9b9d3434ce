"""A run as it lies in its folder, trained or still training: its configuration, metrics, status, policy and data.

`SeedGroup` is a run of several agents that differ only in their training seed: each is an ordinary run, in a folder
within the group's. `Ensemble` is one whose agents act together, as one policy.
"""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from velodrome.bars.summary import Summarised, Summary
from velodrome.errors import CheckpointError, ConfigError, RunError, StoreError, VelodromeError
from velodrome.outside import code
from velodrome.outside.sent import place_of
from velodrome.runs import checkpoint as checkpoints
from velodrome.runs import setup
from velodrome.runs.bucket.place import address_of, url_of
from velodrome.runs.config.explain import to_yaml
from velodrome.runs.config.files import load_config_of_run, load_run_config
from velodrome.runs.config.parameters import price_data, softmax_of_actions
from velodrome.runs.config.run_config import RunConfig
from velodrome.runs.folder import INFORMATION, RunFolder, lineage_entry
from velodrome.runs.store.from_folder import enter_run, members_of, record_of, steps_of
from velodrome.runs.store.rows import shown_status
from velodrome.runs.store.schema import KILLED
from velodrome.runs.store.sinks import metrics_frame
from velodrome.runs.store.store import SqlStore, open_store, whole_address

if TYPE_CHECKING:
    import polars as pl

    from velodrome.evaluation.named_policy import NamedPolicy
    from velodrome.learn.acting import TrainedPolicy
    from velodrome.runs.config.sections import MarketConfig
    from velodrome.tables.basket import Basket
    from velodrome.tables.market import Market

EPISODES = "episodes"  # what is played for validation where there is no market to split


def check_code(config: RunConfig, name: str, only: str = "") -> None:
    """Refuse a configuration from elsewhere that names code which nobody here trusts. only: names of one setting."""
    unknown = code.untrusted(named for named in config.code_names() if named.startswith(only))
    if unknown:
        places = [place for place in map(code.origin, unknown) if place]
        found = f" (Python would import {', '.join(places)})" if places else ""
        raise RunError(
            f"{name}: it names code that was not used here before: {'; '.join(unknown)}{found}. A run from somebody "
            "else can name any, and naming is enough to run it. If you know it, say so once: --trust (in Python "
            "trust=True); runs that you train here need no such word."
        )


def check_source(source: Any, config: RunConfig, trust: bool) -> None:
    """Refuse what `check_code` refuses in a configuration that lies in a run's folder, unless it is trusted."""
    if not trust and isinstance(source, str | Path) and Path(source).with_name(INFORMATION).is_file():
        check_code(config, str(source))


def run_name(config: RunConfig) -> str:
    """Return the start of the name of a run's folder."""
    if config.name:
        return config.name
    # A class of a script, and one whose module begins with "_", are environments as well.
    legal = re.sub(r"[^A-Za-z0-9._-]", "-", config.env.removeprefix("__main__:")).lstrip("._-")
    return legal[:100] or "run"


@dataclass(frozen=True, repr=False)
class Run(Summarised):
    """A run that was trained, or is being trained: its folder and what is in it."""

    folder: RunFolder

    @classmethod
    def create(cls, config: RunConfig, market: Market | Basket | None, root: Path | None = None, **about: Any) -> Run:
        """Make the folder of a new run, in logging.folder unless `root` is given. about: what else its folder says.

        If the configuration asks for several training seeds, or for an ensemble, it is a group's.
        """
        if (named := config.logging.store) is not None:  # the run is opened from other folders, too
            config = load_run_config(config, {"logging.store": whole_address(named)})
        seeds = {"run": config.seed} | ({"count": config.trainings} if config.trainings > 1 else {})
        seeds |= {"ensemble": True} if config.ensemble > 1 else {}
        about |= {"config": to_yaml(config), "seeds": seeds}
        about["data_hash"] = None if market is None else market.content_hash
        run = cls.of(RunFolder.create(root or config.logging.folder, run_name(config), **about))
        code.trust(config.code_names())  # its user has named them
        source = Path(config.market.source).expanduser()
        if run._reads_files and source.exists():
            run.folder.note_data(source)
        return run

    @classmethod
    def of(cls, folder: RunFolder) -> Run:
        """Return the run, or the group, that lies in a folder."""
        return (Ensemble if folder.is_ensemble else SeedGroup if folder.is_group else cls)(folder)

    @classmethod
    def open(cls, run: str | Path | Run, root: str | Path = "runs", trust: bool = False) -> Run:
        """Find a run by path, id, the unique start of its name or id, or "latest".

        trust: the code that it names may be imported, from now on (docs/security.md).
        """
        found = run if isinstance(run, Run) else cls.of(RunFolder.open(run, root))
        if trust:
            code.trust(found.config.code_names())
        return found

    def check_outside(self) -> None:
        """Refuse a run that names code which nobody here trusts, or whose files lead out of its folder."""
        self.folder.check_links()
        check_code(self.config, self.path.name)

    def child(self, config: RunConfig, changed: Mapping[str, Any], market: Market | Basket | None, step: int) -> Run:
        """Make the folder of a run that begins at a step of this one, beside it unless it is told where."""
        root = None if "logging.folder" in changed else self.root
        run = Run.create(config, market, root, lineage=[lineage_entry(step, changed, self.folder)])
        if self.folder.data_place is not None:
            run.folder.note_data(self.folder.data_place)
        return run

    def parents_checkpoint(self) -> checkpoints.Checkpoint | None:
        """Return the checkpoint that it began at as a child, if it is one; needed until it has one of its own."""
        begun = [entry for entry in self.folder.lineage if entry["parent"]]
        if not begun:
            return None
        parent = Run.open(begun[-1]["parent"], self.root)
        return checkpoints.load_checkpoint(checkpoints.checkpoint_home(parent.path) / f"{begun[-1]['step']:012d}")

    @property
    def path(self) -> Path:
        """Its folder."""
        return self.folder.path

    @property
    def root(self) -> Path:
        """The folder of all runs; a member's lies in that of its group."""
        return self.path.parents[1 if self.group_id else 0]

    @property
    def group_id(self) -> str | None:
        """Id of the group of training seeds that it is a member of."""
        return self.folder.information.get("group")

    @property
    def members(self) -> tuple[Run, ...]:
        """The agents of a group by their training seed; a run is its own."""
        return (self,)

    @functools.cached_property
    def config(self) -> RunConfig:
        """The configuration it was trained with."""
        return load_config_of_run(self.folder.config_path)

    @property
    def validation_split(self) -> str | None:
        """The split that is played during training; without a market, episodes of other seeds are."""
        return self.config.evaluation.split if price_data(self.config.env) else EPISODES

    @property
    def metrics(self) -> pl.DataFrame:
        """Everything measured during training: step, name, value, time; of a group also seed."""
        return metrics_frame(self.folder.metrics_path)

    @property
    def status(self) -> str:
        """Running, finished, interrupted, failed, or killed: it has not ended, yet no process trains it."""
        noted = self.noted_status
        if noted is None:  # too early
            return "running" if self.folder.is_locked() else KILLED
        return shown_status(noted, self.folder)

    @property
    def noted_status(self) -> str | None:
        """What its folder says of how it ended; of a run of an older version, the store. None: it has not begun."""
        state = self.folder.state
        if state is not None or not self.folder.has_begun:
            return None if state is None else state.status
        try:
            check_code(self.config, self.path.name, only="logging.store")
            with open_store(self.root, self.config.logging.store, create=False) as store:
                row = store.find(self.folder.id)
        except (StoreError, RunError):
            row = None
        return row.status if row is not None else record_of(self.folder).status

    def summary(self) -> Summary:
        """Return what is shown of it in a line, and in a notebook."""
        try:
            config, status = self.config, self.status
            several = f" with {config.seeds} training seeds" if config.seeds > 1 else ""
            several = f", an ensemble of {config.ensemble}" if config.ensemble > 1 else several
            about_it = f"{config.algorithm} on {config.env}{several}"
            line = f"Run {self.path.name}: {about_it}, {config.steps:,} steps, {status}"
            about = {"folder": self.path, "seed": config.seed, "configuration": config.hash}
        except (VelodromeError, OSError) as error:  # to look at a run must never fail
            return Summary(f"Run {self.path.name}, which cannot be read: {error}")
        about["data"] = self.folder.information.get("data_hash") or "none"
        return Summary(line, ("", ""), tuple((name, str(value)) for name, value in about.items()))

    def store(self, create: bool = False) -> SqlStore:
        """Open the store that holds its rows; a run that was moved by itself is entered into that of its new place."""
        check_code(self.config, self.path.name, only="logging.store")
        store = open_store(self.root, self.config.logging.store, create=create or self.folder.has_begun)
        if self.folder.has_begun and store.find(self.folder.id) is None:
            self.enter(store)
        return store

    def enter(self, store: SqlStore) -> None:
        """Let the store say of it, and of its members, what their folders say."""
        for one in dict.fromkeys((self, *self.members)):
            if one.folder.has_begun:
                enter_run(store, one.folder)

    @property
    def resume_command(self) -> str:
        """The command that continues it, with its group, from the present working directory."""
        path = self.path.parent if self.group_id else self.path
        address = address_of(path)
        if url_of(address):
            return f"velodrome train --resume {shlex.quote(address)}"
        known = path.parent == Path("runs").resolve()
        return f"velodrome train --resume {self.group_id or self.folder.id if known else shlex.quote(str(path))}"

    @functools.cached_property
    def policy(self) -> TrainedPolicy:
        """What it learnt: the best checkpoint on the validation split if there is one, else the last."""
        return self.load_policy()

    def load_policy(self, which: str = "best") -> TrainedPolicy:
        """Return the policy of the "best" or of the "latest" checkpoint; of an ensemble, of all members as one."""
        return self.one_policy(which)[0]

    def one_policy(self, which: str = "best") -> tuple[TrainedPolicy, NamedPolicy]:
        """Return the policy of the "best" or of the "latest" checkpoint, and what a result says of it."""
        found = self.find_checkpoint(which)
        return self.policy_of(found), self.name_policy(found, which)

    def policies(self, which: str = "best") -> tuple[list[TrainedPolicy], NamedPolicy]:
        """Return the policies that a result is about, and what it says of them.

        They are one of a run and of an ensemble, and one for each training seed of a group that has finished.
        """
        policy, named = self.one_policy(which)
        return [policy], named

    def policy_of(self, found: checkpoints.Checkpoint) -> TrainedPolicy:
        """Return the policy of a checkpoint of this run."""
        self.check_outside()
        space = setup.foreign_observation_space(self.config)
        with checkpoints.fitting(found.path):
            setup.check_network(found, self.config.network.kind)
            return setup.load_policy(found.tensors, found.plain, space)

    def find_checkpoint(self, which: str = "best") -> checkpoints.Checkpoint:
        """Load the "best" checkpoint (the latest if no validation chose one), or the "latest"."""
        if which not in ("best", "latest"):
            raise ConfigError(f"checkpoint = {which!r}; legal: 'best', 'latest'.")
        best = checkpoints.pinned_checkpoints(self.path)[-1:] if which == "best" else []
        found = checkpoints.load_checkpoint(best[0]) if best else checkpoints.latest_valid(self.path)
        if found is None:
            raise RunError(f"{self.path}: this run has no checkpoint yet, so there is no policy to load.")
        self.check_own(found)
        return found

    def name_policy(self, found: checkpoints.Checkpoint, which: str) -> NamedPolicy:
        """Return what a result says of the policy of a checkpoint that was found as the "best" or the "latest"."""
        from velodrome.evaluation.named_policy import NamedPolicy, TrainedAgent

        selected_on, candidates, averaged = None, 1, 1
        if which == "best" and checkpoints.is_pinned(found.path):
            split = self.validation_split
            candidates = len(metrics_frame(self.folder.metrics_path, only=f"evaluation/{split}/return"))
            selected_on = "validation episodes" if split == EPISODES else split
            averaged = found.plain.get("averaged", 1)
        steps, planned = (found.steps, max(steps_of(self.folder), found.steps)), self.config.steps
        agent = TrainedAgent(self.folder.id, self.config.seed, *steps, candidates, averaged, planned)
        return NamedPolicy("best" if which == "best" else "latest", (agent,), selected_on)

    def check_own(self, found: checkpoints.Checkpoint) -> None:
        """Refuse a checkpoint that another run wrote."""
        if found.plain.get("run") != self.folder.id:
            raise CheckpointError(
                f"{found.path}: this checkpoint was written by the run {found.plain.get('run')!r} and lies in the "
                f"folder of the run {self.folder.id!r}. Remove it from there, or use the run that wrote it."
            )

    # Its data

    @property
    def market(self) -> Market | Basket | None:
        """The market or basket that it was trained on, built again; None for environments without one."""
        return self._located[0]

    @property
    def market_settings(self) -> MarketConfig:
        """The settings of its market, with the place where its files lie now."""
        place = self._located[1]
        return self.config.market if place is None else self.config.market.model_copy(update={"source": str(place)})

    @property
    def _reads_files(self) -> bool:
        return price_data(self.config.env) is not None and not self.config.market.is_synthetic

    @property
    def data_places(self) -> list[Path]:
        """Where the files of its prices may lie, in the order in which they are looked for."""
        source, noted = Path(self.config.market.source).expanduser(), self.folder.data_place
        started = Path(self.folder.information.get("folder_of_command", ""))
        sent = place_of(self.config.market.source)
        looked = [*([] if noted is None else [noted]), sent.resolve(), (started / source).resolve()]
        return list(dict.fromkeys(looked))

    @functools.cached_property
    def _located(self) -> tuple[Market | Basket | None, Path | None]:
        """Its market and the place of its files.

        They are looked for where they lay as seen from the run's folder, then where the configuration says, as seen
        from here and from where the run was started. The first of the right content is taken, else the first.
        """
        if not self._reads_files:
            return setup.build_market(self.config), None
        there = [place for place in self.data_places if place.exists()]
        if not there:
            places = " and ".join(map(str, self.data_places))
            raise RunError(
                f"{self.path}: its data is not where it was; looked for {places}. Say where it is now: --data PATH, or "
                "data=PATH in Python."
            )
        found = ((setup.build_market(self.config, source=place), place) for place in there)
        first = next(found)
        return next(((market, place) for market, place in (first, *found) if self._is_its_data(market)), first)

    def market_for(
        self, what_for: str, given: Market | Basket | None = None, data: str | Path | None = None
    ) -> Market | Basket | None:
        """Return the market or basket that it began with: the given one, or built from its data; others are refused.

        data: file or folder in which its data lies now. Where it was found is noted in the run's folder.
        """
        if data is None:
            market, place = self._located if given is None else (given, None)
        else:
            market, place = self._market_at(data, given)
        self.check_data(market, what_for, place if data is not None else None)
        if place is not None:
            self.folder.note_data(place)
        return market

    def _market_at(self, data: str | Path, given: Market | Basket | None) -> tuple[Market | Basket | None, Path]:
        """Return the market that the configuration makes of files in another place."""
        if given is not None or not self._reads_files:
            config = self.config
            own = (
                f"{config.env} has none" if price_data(config.env) is None else f"the process {config.market.source!r}"
            )
            raise ConfigError(
                f"data = {str(data)!r} says where price files lie, and the prices of {self.path.name} come from no "
                f"files ({own}, or market=…). Leave it out."
            )
        place = Path(data).expanduser().resolve()
        if not place.exists():
            raise ConfigError(f"data = {str(data)!r}: there is no such file or folder (looked for {place}).")
        return setup.build_market(self.config, source=place), place

    def _is_its_data(self, market: Market | Basket | None) -> bool:
        return (None if market is None else market.content_hash) == self.folder.information["data_hash"]

    def check_data(self, market: Market | Basket | None, what_for: str, place: Path | None = None) -> None:
        """Refuse data that is not what the run began with. place: where it lies, if a person said so."""
        if self._is_its_data(market):
            return
        known = self.folder.information["data_hash"]
        now = None if market is None else market.content_hash
        if place is not None:
            raise RunError(
                f"{place}: this is not the data that {self.path.name} began with: its content hash is {now}, and "
                f"{what_for} it must be {known}. The hash covers prices, times, features and the names of instruments, "
                "which are those of the files. Name the files it began with, or train a new run."
            )
        raise RunError(
            f"{self.path}: the data has changed since this run began (content hash {known} then, {now} now); "
            f"{what_for} needs the data it began with. Restore the data, or say where it lies now (--data PATH, or "
            "data=PATH in Python); if it was given a market, give it again as market=…. Or train a new run."
        )


def as_member(config: RunConfig) -> RunConfig:
    """Return what a member of an ensemble is told: left open, it begins as the rule of one half of the bars."""
    return load_run_config(config, {"teacher.bars": "half"}) if config.teacher.bars == "auto" else config


class SeedGroup(Run):
    """Several runs that differ only in their training seed. None of them is chosen: results are about all."""

    member_name = "training seed of this group"

    @property
    def seeds(self) -> range:
        """The training seeds that its configuration asks for."""
        return range(self.config.seed, self.config.seed + self.config.trainings)

    @property
    def members(self) -> tuple[Run, ...]:
        """Those that were begun so far, by their training seed."""
        found = [Run(folder) for folder in members_of(self.folder)]
        return tuple(sorted(found, key=lambda run: run.config.seed))

    @property
    def metrics(self) -> pl.DataFrame:
        """Those of its members, one after the other, with a column seed."""
        import polars as pl

        each = [run.metrics.with_columns(seed=pl.lit(run.config.seed, pl.Int64)) for run in self.members]
        return pl.concat(each) if each else super().metrics

    def has_all(self, member: Run) -> bool:
        """Return whether a member is told what the group is told now."""
        return self._told(member.config.seed) == member.config

    def _told(self, seed: int) -> RunConfig:
        name = f"{self.folder.information['name'][:80]}-seed-{seed}"
        return load_run_config(self.config, {"seed": seed, "seeds": 1, "ensemble": 1, "name": name})

    def member(self, seed: int, market: Market | Basket | None) -> tuple[Run, RunConfig, bool]:
        """Return the run of a training seed, what the group tells it, and whether it is a new one."""
        told = self._told(seed)
        for found in self.members:
            if found.config.seed == seed:
                return found, told, False
        return Run.create(told, market, self.path, group=self.folder.id), told, True

    def policies(self, which: str = "best") -> tuple[list[TrainedPolicy], NamedPolicy]:
        """Return the policies of the members that have finished, and what a result says of all of them."""
        finished = [member for member in self.members if member.status == "finished"]
        if not finished:
            raise RunError(f"{self.path}: no {self.member_name} has finished. Go on with it: {self.resume_command}")
        each = [member.one_policy(which) for member in finished]
        agents = tuple(agent for _, named in each for agent in named.agents)
        return [policy for policy, _ in each], replace(each[0][1], agents=agents)

    def find_checkpoint(self, which: str = "best") -> checkpoints.Checkpoint:
        """Refuse: a group has no checkpoint of its own."""
        raise RunError(
            f"{self.path.name} is a group of {self.config.seeds} training seeds, and none of them is chosen for you. "
            f"Name one of its members: {self._told_members()}; or evaluate all of them: velodrome eval {self.folder.id}"
        )

    def _told_members(self) -> str:
        return ", ".join(f"{run.folder.id} (seed {run.config.seed})" for run in self.members) or "none yet"


class Ensemble(SeedGroup):
    """Several runs that differ only in their training seed and act as one policy, by the mean of their distributions.

    Each member has the checkpoint that did best on validation for it, and normalises observations as it learnt to.
    """

    member_name = "member of this ensemble"

    def _told(self, seed: int) -> RunConfig:
        return as_member(super()._told(seed))

    def one_policy(self, which: str = "best") -> tuple[TrainedPolicy, NamedPolicy]:
        """Return the members as one policy; all of them must have finished."""
        (policy,), named = self.policies(which)
        if len(named.agents) < self.config.ensemble:
            raise RunError(
                f"{self.path.name} is an ensemble of {self.config.ensemble}, and {len(named.agents)} of its members "
                f"have finished: it has no policy yet. Go on with it: {self.resume_command}. What those can do "
                f"together: velodrome eval {self.folder.id}"
            )
        return policy, named

    def policies(self, which: str = "best") -> tuple[list[TrainedPolicy], NamedPolicy]:
        """Return those members that have finished as one policy, and what a result says of it."""
        from velodrome.learn.ensembles import ensemble_of

        policies, named = super().policies(which)
        softmax = softmax_of_actions(self.config.env, self.config.params)
        return [ensemble_of(policies, softmax=softmax)], replace(named, ensemble=True)

    def find_checkpoint(self, which: str = "best") -> checkpoints.Checkpoint:
        """Refuse: its members have checkpoints."""
        raise RunError(
            f"{self.path.name} is an ensemble, whose members have the checkpoints: {self._told_members()}. Name one of "
            "them, or use the ensemble as a policy."
        )
