"""A table of things by name: ours, those of installed packages, and those that a program registers."""

from __future__ import annotations

import importlib.metadata
import warnings
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import Any, Generic, Protocol, TypeVar

from velodrome.errors import ConfigError, did_you_mean


class Entry(Protocol):
    """Something that has a name."""

    @property
    def name(self) -> str: ...


EntryType = TypeVar("EntryType", bound=Entry)


def load(reference: Any) -> Any:
    """Return what an entry refers to: "module:name" is imported now, anything else is what it stands for."""
    if not isinstance(reference, str):
        return reference
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)


class Registry(Generic[EntryType]):
    """Entries by name. Packages add theirs through an entry-point group, looked up when a name is not known yet."""

    def __init__(self, kind: str, group: str, own: Iterable[EntryType], check: Callable[[EntryType], None]) -> None:
        self.kind, self.group = kind, group
        self._check = check
        self._entries = {entry.name: entry for entry in own}
        self._own = frozenset(self._entries)
        self._looked = False

    def add(self, entry: EntryType, *, replace: bool = False) -> None:
        """Register an entry; a name that is taken is refused unless it replaces one from outside."""
        if entry.name in self._own:
            raise ConfigError(f"{self.kind} {entry.name!r} is Velodrome's own; choose another name")
        if entry.name in self._entries and not replace:
            raise ConfigError(f"{self.kind} {entry.name!r} is registered already; replace=True takes its place")
        self._check(entry)
        self._entries[entry.name] = entry

    def get(self, name: str) -> EntryType:
        """Return the entry of a name; an unknown one is an error that lists those there are."""
        if name not in self:
            legal = self.names()
            raise ConfigError(f"unknown {self.kind} {name!r}; there are {', '.join(legal)}.{did_you_mean(name, legal)}")
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        if name not in self._entries:
            self._look()
        return name in self._entries

    def __iter__(self) -> Iterator[EntryType]:
        self._look()
        return iter(tuple(self._entries.values()))

    def names(self) -> tuple[str, ...]:
        """Return all names, ours first."""
        return tuple(entry.name for entry in self)

    def _look(self) -> None:
        """Add what installed packages offer: an entry, or a function that returns one."""
        if self._looked:
            return
        self._looked = True
        for point in importlib.metadata.entry_points(group=self.group):
            try:
                found = point.load()
                entry = found if hasattr(found, "name") and not callable(found) else found()
            except Exception as error:  # somebody else's package: what it breaks must not be everything
                told = f"the entry point {point.name} = {point.value!r} of {self.group} cannot be loaded: {error!r}"
                warnings.warn(f"{told}; its {self.kind} is not known", RuntimeWarning, stacklevel=2)
                continue
            if entry.name not in self._entries:
                self.add(entry)
