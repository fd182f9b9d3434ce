"""A champion's files: what it needs to act on bars that it never saw, and where it comes from. They never change.

champions/files/0123456789abcdef/    named for the hash of its content
    champion.json            environment, symbols, bar size, frozen scalers, members, lineage, and why it was promoted
    config.yaml              of the run that it comes from
    policy-0.safetensors     weights and the normaliser of a member; an ensemble has several, none an optimiser

Tensors and plain values are all that is read: opening a champion executes no code of whoever wrote it.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from velodrome.errors import ChampionError, ConfigError
from velodrome.outside.files import UNFIT, open_regular, read_json
from velodrome.runs import setup
from velodrome.runs.checkpoint import Checkpoint, fitting
from velodrome.runs.config.explain import to_yaml
from velodrome.runs.config.files import load_config_of_run
from velodrome.runs.config.parameters import price_data, softmax_of_actions
from velodrome.runs.config.run_config import RunConfig
from velodrome.runs.trained import Run, check_code
from velodrome.runs.versions import versions
from velodrome.tables.scaling import TRAIN, Scaler
from velodrome.writing import new_folder

if TYPE_CHECKING:
    from velodrome.bars.frame import Bars
    from velodrome.learn.acting import TrainedPolicy
    from velodrome.tables.basket import Basket
    from velodrome.tables.market import Market

FORMAT = 1
ABOUT, CONFIG = "champion.json", "config.yaml"
KEPT_PARTS = ("moments", "scale")  # of a checkpoint's tensors, besides the weights
NAME_DIGITS = 16  # of the hash, in the name of the folder


@dataclass(frozen=True)
class Champion:
    """A policy as it was promoted."""

    path: Path
    hash: str  # of all its files

    @classmethod
    def open(cls, path: Path, expected: str | None = None) -> Champion:
        """Return the champion in a folder; one whose files are not those that were promoted is refused."""
        try:
            found = content_hash(path)
        except OSError as error:
            raise ChampionError(
                f"{path}: the champion's files cannot be read ({error.strerror or error}). Restore them from a copy, "
                "or roll back to another one: velodrome champions rollback NAME"
            ) from error
        if expected is not None and found != expected:
            raise ChampionError(
                f"{path}: these are not the files that were promoted (hash {found[:NAME_DIGITS]} now, "
                f"{expected[:NAME_DIGITS]} then). Restore them from a copy, or roll back to another champion."
            )
        return cls(path, found)

    @cached_property
    def about(self) -> dict[str, Any]:
        """What `champion.json` says."""
        file = self.path / ABOUT
        try:
            about = read_json(file)
            version = about["format"]
        except (OSError, *UNFIT) as error:
            raise ChampionError(f"{file}: cannot be read ({type(error).__name__}: {error}).") from error
        if version != FORMAT:
            raise ChampionError(f"{file}: format {version!r}, and this Velodrome reads {FORMAT}; a newer one wrote it.")
        return about

    @cached_property
    def config(self) -> RunConfig:
        """The configuration of the run that it comes from."""
        return load_config_of_run(self.path / CONFIG)

    @property
    def symbols(self) -> tuple[str, ...]:
        """The instruments that it trades."""
        return tuple(self.about["symbols"])

    @property
    def timeframe(self) -> str:
        """Size of the bars that it is given; it may trade coarser ones."""
        return self.about["timeframe"]

    @property
    def kind(self) -> str:
        """What its environment plays on: "market" or "basket"."""
        return self.about["kind"]

    @property
    def known_until(self) -> int | None:
        """When the last bar opened that it learnt from or was chosen by, in nanoseconds UTC.

        None: it was promoted before that was noted.
        """
        return self.about.get("known_until")

    @cached_property
    def scalers(self) -> tuple[Scaler, ...]:
        """How its windows are scaled, as in training."""
        return tuple(Scaler.from_dict(record) for record in self.about["scalers"])

    def lay_out(self, bars: Bars, **changes: Any) -> Market | Basket:
        """Return what it sees of some bars, with the scalers of its training; the bars have no splits."""
        ordered = {symbol: bars.series[symbol] for symbol in self.symbols if symbol in bars.series}
        bars = replace(bars, series=ordered)
        choices = {"splits": {}, "embargo": 0, "check_leaks": False, **changes}
        return self.config.market.lay_out(bars, self.kind, scalers=self.scalers, **choices)

    def policy(self, trust: bool = False) -> TrainedPolicy:
        """Return what it does. trust: code that it names may be imported, though it was not used here before."""
        if not trust:
            check_code(self.config, f"champion {self.path.name}")
        return self._policy

    @cached_property
    def _policy(self) -> TrainedPolicy:
        policies = []
        for number, plain in enumerate(self.about["members"]):
            found = Checkpoint(int(plain["steps"]), _load(self.path / _member(number)), plain, self.path)
            with fitting(self.path):
                setup.check_network(found, self.config.network.kind)
                policies.append(setup.load_policy(found.tensors, plain))
        if len(policies) == 1 and self.config.ensemble == 1:
            return policies[0]
        from velodrome.learn.ensembles import ensemble_of

        return ensemble_of(policies, softmax=softmax_of_actions(self.config.env, self.config.params))


def freeze(run: Run, bars: Bars, market: Market | Basket, home: Path, about: Mapping[str, Any]) -> Champion:
    """Write the champion that a run's policy becomes, and return it. about: lineage and evaluation, as JSON holds them.

    run: one that acts as one policy. bars: those that its market was made of, before any windows.
    """
    from safetensors.torch import save

    config = run.config
    kind = price_data(config.env)
    if kind is None:
        raise ConfigError(
            f"{run.path.name}: env = {config.env!r} plays on no market, and champions follow bars. Promote a run on a "
            "market or a basket."
        )
    members, files = [], {}
    for number, member in enumerate(run.members if config.ensemble > 1 else (run,)):
        found = member.find_checkpoint("best")
        files[_member(number)] = save(_weights(found.tensors))
        facts = setup.saved_facts(member.config)
        members.append({"agent": found.plain["agent"], "steps": found.steps, "seed": member.config.seed, **facts})
    content = {
        "format": FORMAT,
        "env": config.env,
        "kind": kind,
        "symbols": list(bars.symbols),
        "timeframe": bars.timeframe,
        "traded": market.timeframe,
        "timezone": bars.timezone,
        "members": members,
        "scalers": [scaler.to_dict() for scaler in market.scalers],
        "known_until": _known_until(market, TRAIN, config.evaluation.split),
        "versions": versions(),
        "created": time.time(),
        **about,
    }
    files[ABOUT] = (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()
    files[CONFIG] = to_yaml(config).encode()
    found_hash = _hash_of({name: hashlib.sha256(data).hexdigest() for name, data in files.items()})
    place = home / "files" / found_hash[:NAME_DIGITS]
    with new_folder(place) as folder:
        for name, data in files.items():
            (folder / name).write_bytes(data)
            (folder / name).chmod(0o444)
    return Champion.open(place, found_hash)


def _known_until(market: Market | Basket, *splits: str | None) -> int:
    rows = [int(market.split(name).end.max()) - 1 for name in splits if name is not None and name in market.splits]
    return max(int(market.time[row]) for row in rows)


def content_hash(path: Path) -> str:
    """Return the hash of a champion's files, by name and content."""
    names = sorted(file.name for file in path.iterdir())
    hashes = {}
    for name in names:
        with open(open_regular(path / name), "rb") as file:
            hashes[name] = hashlib.file_digest(file, "sha256").hexdigest()
    if ABOUT not in hashes:
        raise OSError(f"there is no {ABOUT}")
    return _hash_of(hashes)


def _hash_of(hashes: Mapping[str, str]) -> str:
    listed: Sequence[str] = [f"{name} {hashes[name]}\n" for name in sorted(hashes)]
    return hashlib.sha256("".join(listed).encode()).hexdigest()


def _member(number: int) -> str:
    return f"policy-{number}.safetensors"


def _weights(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return what acting needs of a checkpoint's tensors: the weights that act, and the normaliser."""
    from velodrome.learn.learner import nested, only

    acting = only(tensors, "average") or only(tensors, "policy")
    kept = {part: own for part in KEPT_PARTS if (own := only(tensors, part))}
    return nested({"policy": acting, **kept})


def _load(path: Path) -> dict[str, Any]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise ChampionError(f"{path}: cannot be read ({error}).") from error
