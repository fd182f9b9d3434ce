"""`promote`: a candidate becomes the champion only if chance, choice and the present champion all speak for it.

It must have, on a split that it never saw, a deflated Sharpe ratio of at least 95 %; the choice that it comes from a
probability of overfitting of at most 20 %; and its lead over the champion, and over buying and holding, an interval
above a margin. docs/champions.md explains what each is made of.
"""

from __future__ import annotations

import glob
import math
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from velodrome.envs.parameters import with_preset
from velodrome.errors import ConfigError, RunError, VelodromeError
from velodrome.evaluation.baselines import BUY_AND_HOLD, EQUAL_REBALANCED, FLAT, LABELS
from velodrome.evaluation.intervals import Interval, influence_interval, student_quantile
from velodrome.evaluation.sharpe import Trials, deflated_sharpe, moments
from velodrome.outside.files import UNFIT
from velodrome.runs.store.looks import Look, SeenBars, add_looks, looks_at, told_looks
from velodrome.runs.store.schema import tables
from velodrome.runs.store.store import SqlStore, open_store
from velodrome.runs.trained import Run, SeedGroup, run_name
from velodrome.tables.hashing import bars_of, price_hash
from velodrome.tune.champions.frozen import Champion, freeze
from velodrome.tune.champions.hooks import Hooks
from velodrome.tune.champions.registry import HOOK_FAILED, PROMOTED, REFUSED, Record, Registry, check_name, enter, note
from velodrome.tune.outcome import FREE, read_returns
from velodrome.tune.overfitting import Overfitting, cscv, distinct
from velodrome.tune.population.kept import is_judged, read
from velodrome.tune.study import Studies, Study, StudyError
from velodrome.tune.verdict import chosen_among
from velodrome.writing import replacing

if TYPE_CHECKING:
    from velodrome.bars.frame import Bars
    from velodrome.evaluation.evaluator import Evaluator, Played
    from velodrome.tables.basket import Basket
    from velodrome.tables.market import Market

LEAST_SHARPE = 0.95  # deflated: the probability that the true one lies above what luck gives the best of the trials
MOST_OVERFITTING = 0.2
CONFIDENCE = 0.95  # of the intervals of leads
FRESH_SEEDS = range(7_000_001, 7_000_006)  # of what an environment draws; no evaluation begins there
BLOCKS = (16, 8, 4, 2)  # of CSCV; the most that leave each block BARS_IN_A_BLOCK
BARS_IN_A_BLOCK = 8
CHAMPION = "champion"
FUNDING = ("funding", "funding_column", "funding_side")  # parameters: what holding a position costs


@dataclass(frozen=True)
class Evidence:
    """Among what a candidate was chosen."""

    trials: Trials  # all that were tried, pruned ones too, and the variance of their Sharpe ratios per bar
    overfitting: Overfitting | None  # of the choice; None: there was one policy, or too little is known of them
    said: tuple[str, ...]  # what counts as a trial, for people
    study: str | None = None  # id
    trial: int | None = None
    no_choice: str = ""  # why there was nothing to choose between, for people


@dataclass(frozen=True)
class Check:
    """One demand, and what was found."""

    name: str
    found: str
    needed: str
    passed: bool

    @property
    def sentence(self) -> str:
        """What it says in words."""
        return f"{self.name} is {self.found}, and {self.needed} is needed"


@dataclass(frozen=True)
class Verdict:
    """What became of a candidate."""

    name: str  # of the champion that it is, or would be
    run: str
    checks: tuple[Check, ...]
    said: tuple[str, ...]  # what counts as a trial, which seeds were played
    record: Record | None  # of the champion since; None: it was not promoted
    failed_hooks: tuple[str, ...] = ()

    @property
    def promoted(self) -> bool:
        """Whether it is the champion now."""
        return self.record is not None

    @property
    def sentence(self) -> str:
        """What became of it, in words."""
        if self.promoted:
            return f"{self.run} is the champion {self.name!r}"
        return f"{self.name}: {shlex.quote(self.run)} was not promoted: {'; '.join(self.reasons)}"

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it was not promoted."""
        return tuple(check.sentence for check in self.checks if not check.passed)


def promote(
    run: str | Path | Run,
    *,
    name: str | None = None,
    evidence: Evidence | None = None,
    margin: float = 0.0,
    root: str | Path | None = None,
    data: str | Path | None = None,
    hooks: Hooks | None = None,
    trust: bool = False,
) -> Verdict:
    """Make the policy of a run the champion of a name if it passes all checks, and say what it did not pass.

    run: of a group of training seeds all agents are judged, and the one that did best on validation becomes champion.
    name: of the champion; that of the run's configuration, or its environment's, if none is given.
    evidence: among what the run was chosen; None: what the study or the population that made it knows of that, or, if
        none did, what the store knows of its test split.
    margin: by how much the lead must exceed 0 on the whole split, as a log return: 0.01 is about 1 %.
    root: folder in which champions lie, with its store; that of the run if none is given.
    data: where the run's files lie now, if they moved. hooks: who is told of a promotion.
    """
    if not math.isfinite(margin) or margin < 0.0:
        raise ConfigError(f"margin = {margin!r}: needs a log return of at least 0, such as 0.01 for about 1 %.")
    run = Run.open(run, root or "runs", trust)
    home = Path(root) if root is not None else run.root
    run.check_outside()
    if run.status != "finished":
        raise RunError(
            f"{run.path.name} is {run.status}: a run is promoted when it has finished. Go on with it: "
            f"{run.resume_command}"
        )
    registry = Registry(home)
    name = name or run_name(run.config)
    check_name(name)
    trial = _Trial(run, data)
    before = registry.find(name)
    rival = None if before is None else registry.open(before.now)
    leads = trial.leads(rival, name)
    with open_store(home, run.config.logging.store) as store:
        if before is not None:
            enter(store, before)  # what a crash may have kept from it
        found = evidence or evidence_of(run, store) or evidence_of_population(run) or looks_of(run, store, trial)
        checks = judge(found, trial.returns, leads, margin)
        trial.keep_look(store)
        said = (*found.said, trial.said, *trial.warned)
        if not all(check.passed for check in checks):
            verdict = Verdict(name, run.folder.id, checks, said, None)
            note(store, REFUSED, verdict.sentence, run.folder.id, found.study, name=name, reasons=list(verdict.reasons))
            return verdict
        record = trial.freeze(registry, before, name, found, checks, said)
        enter(store, record)
        verdict = Verdict(name, run.folder.id, checks, said, record)
        event = {"kind": PROMOTED, "name": name, **asdict(record.now), "folder": str(registry.open(record.now).path)}
        failed = tuple((hooks or Hooks()).tell(event))
        for problem in failed:
            note(store, HOOK_FAILED, problem, run.folder.id, found.study, name=name)
    return replace(verdict, failed_hooks=failed)


def judge(
    evidence: Evidence, returns: NDArray[np.float64], leads: Mapping[str, Interval], margin: float = 0.0
) -> tuple[Check, ...]:
    """Return the checks of a candidate.

    returns: [bars, agents] of the candidate on a split that it never saw. leads: over whom, as sums of log returns.
    """
    each = [deflated_sharpe(moments(own), evidence.trials) for own in returns.T]
    sharpe = float(np.mean(each))
    found = f"{sharpe:.1%}" if math.isfinite(sharpe) else "not known (its returns do not vary)"
    checks = [Check("the deflated Sharpe ratio", found, f"{LEAST_SHARPE:.0%} or more", sharpe >= LEAST_SHARPE)]
    checks.append(_overfitting_check(evidence))
    for rival, lead in leads.items():
        interval = f"{lead.value:+.2%} in log return ({CONFIDENCE:.0%} interval {lead.low:+.2%} … {lead.high:+.2%})"
        found = interval if math.isfinite(lead.low) else "not known (one of them lost everything, or never varied)"
        checks.append(Check(f"its lead over {rival}", found, f"an interval above {margin:+.2%}", lead.low > margin))
    return tuple(checks)


def _overfitting_check(evidence: Evidence) -> Check:
    name, needed, found = "the probability of overfitting", f"{MOST_OVERFITTING:.0%} or less", evidence.overfitting
    if found is not None:
        told = f"{found.probability:.1%} (slope {found.slope:+.2f}, probability of loss {found.loss:.1%})"
        return Check(name, told, needed, found.probability <= MOST_OVERFITTING)
    if evidence.no_choice:
        return Check(name, f"none: {evidence.no_choice}", needed, True)
    if evidence.trials.count > 1:
        return Check(name, "not known: the returns of too few trials, or of too few bars, are there", needed, False)
    return Check(name, "none: nothing was chosen among several", needed, True)


def overfitting_of(returns: NDArray[np.float64]) -> Overfitting | None:
    """Return the probability of overfitting by as many blocks as the bars allow; None: too few bars or policies."""
    returns = distinct(returns)
    blocks = next((count for count in BLOCKS if len(returns) >= BARS_IN_A_BLOCK * count), None)
    return None if blocks is None or returns.shape[1] < 2 else cscv(returns, blocks)


def lead_over(own: NDArray[np.float64], other: NDArray[np.float64]) -> Interval:
    """Return the lead of agents over another, as the sum of log returns, with its interval.

    own: [bars, agents] log returns; several agents differ in their training seed. other: [bars, seeds].
    The interval holds the chance of the bars, as autocorrelation leaves it, and that of the training seeds.
    """
    bars, agents = own.shape
    with np.errstate(invalid="ignore"):
        apart = own.mean(axis=1) - other.mean(axis=1)
        found = influence_interval(float(apart.mean()), apart, CONFIDENCE)
        reach = found.high - found.value
        if agents > 1:
            spread = float(own.mean(axis=0).std(ddof=1)) / math.sqrt(agents)
            reach = math.hypot(reach, student_quantile(0.5 + 0.5 * CONFIDENCE, agents - 1) * spread)
    return Interval(found.value * bars, (found.value - reach) * bars, (found.value + reach) * bars)


class _Trial:
    """A candidate on its test split, beside those that it has to beat."""

    def __init__(self, run: Run, data: str | Path | None) -> None:
        from velodrome.evaluation.evaluate import check_out_of_sample
        from velodrome.evaluation.evaluator import evaluator_for

        self.run, self.config = run, run.config
        policies, named = run.policies("best")
        market = run.market_for("to promote it", data=data)
        if market is None or self.config.evaluation.final_split is None:
            raise ConfigError(
                f"{run.path.name}: a candidate is judged on a split of a market that it never saw "
                f"(evaluation.final_split), and it has none. Promote a run on a market with one."
            )
        self.market: Market | Basket = market
        self.split = self.config.evaluation.final_split
        check_out_of_sample(market, self.split, "train" if "train" in market.splits else None, False)
        self.evaluator: Evaluator = evaluator_for(self.config.env, market, self.split, self.config.params)
        if not self.evaluator.has_equity:
            raise ConfigError(f"{run.path.name}: env = {self.config.env!r} keeps no account to be judged by.")
        self.seeds = tuple(FRESH_SEEDS) if self.evaluator.draws else tuple(FRESH_SEEDS[:1])
        self.agents = [_play(self.evaluator, "agent", policy, market, self.seeds) for policy in policies]
        seen = tuple(SeenBars(*one) for one in bars_of(market, self.split))
        self.look = Look(price_hash(market, self.split), run.folder.id, named.step, self.split, time.time(), seen)

    @property
    def returns(self) -> NDArray[np.float64]:
        """[bars, agents] on the test split, means over what the environment draws."""
        return np.stack([agent.curve.returns.mean(axis=1) for agent in self.agents], axis=1)

    def keep_look(self, store: SqlStore) -> None:
        """Enter this look at the test data, and keep the returns for those who are compared with it later."""
        with replacing(self.run.path / _returns_name(self.look)) as new, new.open("wb") as file:
            np.save(file, self.returns.mean(axis=1), allow_pickle=False)
        add_looks(store, [self.look])

    @property
    def said(self) -> str:
        """Which seeds were played."""
        trained = f"{len(self.agents)} training seeds" if len(self.agents) > 1 else "one policy"
        fresh = f"{len(self.seeds)} fresh seeds of the environment" if len(self.seeds) > 1 else "nothing is drawn"
        return f"judged on the split {self.split!r}: {trained}, {fresh}, {len(self.returns):,} bars"

    @property
    def warned(self) -> tuple[str, ...]:
        """What the checks cannot see."""
        return (f"warning: {FREE}",) if self.evaluator.at_costs(2.0) is None else ()

    def leads(self, rival: Champion | None, name: str) -> dict[str, Interval]:
        """Return its lead over the champion and over what needs no skill."""
        own = np.stack([agent.curve.log_returns.mean(axis=1) for agent in self.agents], axis=1)
        label, simple = self._simple()
        others = {label: simple.curve}
        if rival is not None:
            others = {f"the champion {name!r}": self._beside(rival, name).curve, **others}
        return {who: lead_over(own, curve.log_returns) for who, curve in others.items()}

    def _simple(self) -> tuple[str, Played]:
        """Play buy and hold, or equal weights; what cannot express them has to beat an account that does nothing."""
        wanted = (EQUAL_REBALANCED, BUY_AND_HOLD, FLAT)
        offered = {one.name: one for one in self.evaluator.baselines(self.agents[0], self.seeds[0])}
        for baseline in (offered[one] for one in wanted if one in offered):
            if baseline.policy is not None:
                played = self.evaluator.play(baseline.name, baseline.policy, self.seeds, 1, None, baseline.params)
                return LABELS[baseline.name], played
        raise ConfigError(
            f"{self.run.path.name}: neither buy and hold nor equal weights can be played in env = {self.config.env!r}, "
            "so there is nothing to compare it with."
        )

    def _beside(self, rival: Champion, name: str) -> Played:
        """Play the present champion on the same bars, with its own windows and scalers and the candidate's costs."""
        from velodrome.evaluation.evaluator import evaluator_for

        other = f"Give the candidate a name of its own: --name (champion {name!r} stays as it is)."
        if rival.config.env != self.config.env or set(rival.symbols) != set(self.market.symbols):
            raise ConfigError(
                f"champion {name!r} trades {', '.join(rival.symbols[:5])} in {rival.config.env}, and "
                f"{self.run.path.name} {', '.join(self.market.symbols[:5])} in {self.config.env}. {other}"
            )
        part = self.market.split(self.split)
        rows = np.concatenate([part.time[low:high] for low, high in zip(part.begin, part.end, strict=True)])
        span = tuple(np.datetime64(int(moment), "ns") for moment in (rows.min(), rows.max() + 1))
        try:
            market = rival.lay_out(self.bars, splits={self.split: span})
        except VelodromeError as error:
            raise ConfigError(f"champion {name!r} cannot be played on this data: {error} {other}") from error
        costs = costs_of(self.evaluator)
        own = {key: value for key, value in rival.config.params.items() if key not in costs}
        evaluator = evaluator_for(self.config.env, market, self.split, {**own, **costs})
        played = _play(evaluator, CHAMPION, rival.policy(), market, self.seeds)
        if not np.array_equal(played.curve.time, self.agents[0].curve.time):
            raise ConfigError(
                f"champion {name!r} cannot decide on all bars of the split {self.split!r} that the candidate decides "
                f"on (its windows reach further back, or its bars are of another size). {other}"
            )
        return played

    @property
    def bars(self) -> Bars:
        """Those that its market was made of."""
        return self.run.market_settings.bars()

    def freeze(
        self,
        registry: Registry,
        before: Record | None,
        name: str,
        evidence: Evidence,
        checks: Sequence[Check],
        said: Sequence[str],
    ) -> Record:
        """Write its files and let the name point to them."""
        run = self._one()
        evaluation = {"split": self.split, "checks": [asdict(check) for check in checks], "said": list(said)}
        lineage = {
            "run": self.run.folder.id,
            "policy_of": run.folder.id,
            "run_folder": self.run.path.name,
            "study": evidence.study,
            "trial": evidence.trial,
            "config_hash": self.config.hash,
            "data_hash": self.market.content_hash,
        }
        about = {"lineage": lineage, "evaluation": evaluation}
        champion = freeze(run, self.bars, self.market, registry.home, about)
        return registry.add(
            name,
            champion,
            before.current if before else None,
            f"{name}: {run.path.name} is the champion",
            run=self.run.folder.id,
            study=evidence.study,
            trial=evidence.trial,
            data_hash=self.market.content_hash,
            evaluation=evaluation,
        )

    def _one(self) -> Run:
        """Return the run whose policy is taken: of several training seeds, the best one on validation."""
        if not isinstance(self.run, SeedGroup) or self.config.ensemble > 1:
            return self.run
        finished = [member for member in self.run.members if member.status == "finished"]
        return max(finished, key=lambda member: float(member.find_checkpoint("best").plain["best"]))


def _play(evaluator: Evaluator, name: str, policy: Any, market: Market | Basket, seeds: tuple[int, ...]) -> Played:
    from velodrome.rollout.observation import WindowBank

    shown = policy.with_bank(WindowBank(market.windows)) if policy.shape.windows else policy
    return evaluator.play(name, shown, seeds if evaluator.draws else seeds[:1], 1, None)


def costs_of(evaluator: Evaluator) -> dict[str, Any]:
    """Return what trading and holding cost in an evaluator's environment, with preset and defaults filled in."""
    from velodrome.evaluation.evaluator import COSTS

    given, entry = dict(evaluator.params), evaluator.entry
    model = entry.parameter_model()
    found = with_preset(entry.parameter_presets(), given.pop("preset", None), given, model)
    config = evaluator.config or (None if model is None else model.create(**found))
    if config is not None:
        found = {name: getattr(config, name) for name in type(config).model_fields}
    return {name: found[name] for name in (*COSTS, *FUNDING) if name in found}


# What counts as a trial


def looks_of(run: Run, store: SqlStore, trial: _Trial) -> Evidence:
    """Return the looks of other policies at the same test data, each a trial, and the run itself."""
    looks = [look for look in looks_at(store, trial.look.data_hash, trial.look.bars) if look.run != run.folder.id]
    told = told_looks(len(looks), trial.split, [look.overlap for look in looks])
    if not looks:
        return Evidence(Trials(1, 0.0), None, (f"1 trial: {told}",))
    folders = {record.id: Path(record.folder) for record in store.runs()}
    own = trial.returns.mean(axis=1)
    # Looks at bars that merely overlap with these count for the deflated Sharpe ratio; their curves do not compare.
    rivals = [look for look in looks if look.data_hash == trial.look.data_hash]
    found = [_returns_in(folders[look.run], look, trial) for look in rivals if look.run in folders]
    curves = [own, *(curve for curve in found if curve is not None)]
    said = [f"{len(looks) + 1} trials: {told}"]
    if lost := len(rivals) + 1 - len(curves):
        said.append(f"the curves of {lost} of them are gone, so that the choice is known in part (velodrome eval RUN)")
    different = distinct(np.stack(curves, axis=1))
    if same := len(curves) - different.shape[1]:
        verb = "counts" if same == 1 else "count"
        said.append(f"{same} of them played the same as another, to the bit, and {verb} as one with it")
    ratios = [ratio for curve in different.T if not math.isnan(ratio := moments(curve).sharpe)]
    trials = Trials.among(ratios, len(looks) + 1 - same, len(own))
    no_choice = "" if lost or different.shape[1] > 1 else "no other policy was played on these very bars"
    return Evidence(trials, overfitting_of(different), tuple(said), no_choice=no_choice)


def winner_of(studies: Studies, study: Study, root: Path) -> tuple[Run, Evidence]:
    """Return the run of a study's winner, trained anew with fresh seeds, and among what it was chosen."""
    course = study.course()
    course.trials[:] = studies.trials(study)
    winner, last = course.winner, course.settings.final_step
    if study.status != "finished" or winner is None:
        raise StudyError(
            f"study {study.name!r} is {study.status}: it has no winner to promote yet (velodrome studies show "
            f"{shlex.quote(study.name)})."
        )
    if last not in winner.outcomes:
        raise StudyError(
            f"study {study.name!r} did not train its winner anew (test=false), so nothing was tested. Train it with "
            "fresh seeds and promote that run."
        )
    return Run.open(winner.outcomes[last].run, root), _chosen_by(studies, study, winner.number, root)


def evidence_of(run: Run, store: SqlStore) -> Evidence | None:
    """Return among what a run of a study was chosen, or a training seed of such a run; None: no study made it."""
    jobs = tables().jobs
    mine = (jobs.c.id == (run.group_id or run.folder.id)) & jobs.c.study.is_not(None)
    query = jobs.select().with_only_columns(jobs.c.study, jobs.c.trial).where(mine)
    made = store.read(lambda connection: connection.execute(query).first())
    if made is None:
        return None
    studies = Studies(store)
    study = studies.get(made.study)
    found = _chosen_by(studies, study, made.trial, run.root)
    told = f"trial {made.trial} of study {study.name!r}: it is judged as the best of them all"
    return replace(found, said=(told, *found.said))


def evidence_of_population(run: Run) -> Evidence | None:
    """Return among what a population chose one of its members; None: no population made the run, or chose any yet."""
    population = read(run.path.parent)
    judged = [] if population is None else [each for each in population.rounds if is_judged(each)]
    if not judged:
        return None
    members = judged[-1]
    known = [read_returns(run.path.parent / member.run) for member in members]
    curves = [own.astype(np.float64) for own in known if own is not None and np.isfinite(own).all()]
    bars = min(map(len, curves), default=2)
    ratios = [float(member.per_bar) for member in members if member.per_bar is not None]
    alike = [own for own in curves if len(own) == bars]
    found = overfitting_of(np.stack(alike, axis=1)) if alike else None
    same = len(alike) == len(members) and distinct(np.stack(alike, axis=1)).shape[1] == 1
    said = f"the best of a population: it is judged among the {len(members)} members of the last round"
    no_choice = "all members played the same" if same else ""
    return Evidence(Trials.among(ratios, len(members), bars), found, (said,), no_choice=no_choice)


def _chosen_by(studies: Studies, study: Study, trial: int, root: Path) -> Evidence:
    """Return among what a study chose one of its trials."""
    chosen = chosen_among(studies, study, root)
    said = tuple(chosen.told()) or (f"the winner among {chosen.own} trials",)
    trials = chosen.trials or Trials(max(chosen.own, 1), 0.0)
    no_choice = "all trials played the same" if chosen.one_policy else ""
    return Evidence(trials, chosen.overfitting, said, study.id, trial, no_choice)


def promote_study(
    name: str, root: Path | str = "runs", store: str | None = None, *, champion: str | None = None, **options: Any
) -> Verdict:
    """Promote the winner of a study. champion: name; that of the study's configuration if none is given.

    options: as for `promote`.
    """
    with open_store(root, store, create=False) as opened:
        studies = Studies(opened)
        study = studies.get(name)
        run, evidence = winner_of(studies, study, Path(root))
    return promote(run, name=champion or run_name(study.run_config), evidence=evidence, root=root, **options)


def _returns_in(folder: Path, look: Look, trial: _Trial) -> NDArray[np.float64] | None:
    """Return the returns of one look: those that its evaluation, or its promotion, has kept; None: gone.

    A run has several looks if several of its checkpoints were played, and each has a curve of its own.
    """
    returns = _evaluated(folder, look)
    if returns is None:
        try:
            returns = np.load(folder / _returns_name(look), allow_pickle=False)
        except (OSError, *UNFIT):
            return None
    return returns if returns.shape == (len(trial.returns),) and np.isfinite(returns).all() else None


def _returns_name(look: Look) -> str:
    """Return the file in a run's folder that keeps the returns of a candidate on its test split."""
    return f"promotion-returns-{look.step}-{look.data_hash[:16]}.npy"


def _evaluated(folder: Path, look: Look) -> NDArray[np.float64] | None:
    """Return the returns of the evaluation that a look was; None if there is none, or its files are damaged."""
    import polars as pl

    from velodrome.evaluation.result import Evaluation

    for path in sorted((folder / "evaluation").glob(f"{glob.escape(look.split)}-*.json")):
        try:
            known = Evaluation.read_figures(path)
            seen = (known["look"] or {}).get("data_hash"), known["policy"] and known["policy"].step
            if seen == (look.data_hash, look.step):
                growth = Evaluation.read(path).equity["agent"].to_numpy()
                return growth[1:] / growth[:-1] - 1.0
        except (VelodromeError, OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException, *UNFIT):
            continue
    return None
