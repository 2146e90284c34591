"""One row of `hpc-bridge doctor`: what was checked, what came of it, and what to do. Data only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """`skipped`: it could not be looked at, which is not known to be wrong."""

    OK = "ok"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Check:
    """`where` is CLUSTER/ACCOUNT or `kubernetes`; `advice` says what to do, empty when there is nothing to do."""

    where: str
    name: str
    state: State
    found: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Rows:
    """Makes the rows of one place."""

    where: str

    def ok(self, name: str, found: str) -> Check:
        """All is well."""
        return Check(self.where, name, State.OK, found)

    def failed(self, name: str, found: str, advice: str) -> Check:
        """Pods will not run, or not properly, until somebody acts."""
        return Check(self.where, name, State.FAILED, found, advice)

    def skipped(self, name: str, found: str, advice: str = "") -> Check:
        """Could not be looked at."""
        return Check(self.where, name, State.SKIPPED, found, advice)

    def unseen(self, names: Iterable[str], needed: str) -> list[Check]:
        """All that could not be looked at because `needed` failed."""
        return [self.skipped(name, f"needs {needed}") for name in names]
