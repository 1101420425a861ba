"""Shared state of the rules for one file."""

import dataclasses
import functools

import libcst as cst

from jaxrl.migrate.kinds import Facts
from jaxrl.migrate.report import Kind, Ledger
from jaxrl.migrate.verdicts import SettingsJudge


@dataclasses.dataclass(frozen=True, order=True)
class NeededImport:
    """Import that the migrated file needs: `import module`, or `from module import name`."""

    module: str
    name: str | None = None
    is_for_effect: bool = dataclasses.field(default=False, compare=False)
    """True if the import itself is needed, and no name of it."""


class Context:
    """Shared state: facts about the original, the account, and the imports that are needed.

    Args:
        facts: Facts about the unchanged module.
        ledger: Account of the file.
    """

    def __init__(self, facts: Facts, ledger: Ledger) -> None:
        self.facts = facts
        self.ledger = ledger
        self.needed: set[NeededImport] = set()

    def change(self, node: cst.CSTNode, kind: Kind, what: str) -> None:
        """Record a change at a node of the original."""
        self.ledger.change(self.facts.get_name_line(node), kind, what)

    def by_hand(self, node: cst.CSTNode, kind: Kind, what: str, advice: str) -> None:
        """Record that a node of the original has to be rewritten by hand."""
        self.ledger.by_hand(self.facts.get_name_line(node), kind, what, advice)

    @staticmethod
    @functools.cache
    def get_judge(algo: str | None) -> SettingsJudge:
        """Return the judge of an algorithm's settings."""
        return SettingsJudge(algo)

    def need(self, path: str) -> cst.BaseExpression:
        """Return an expression for a path such as `jaxrl.PPOConfig`, and note its import."""
        module, _, name = path.rpartition(".")
        if module == "ray.tune":
            self.needed.add(NeededImport("ray", "tune"))
            return cst.parse_expression(f"tune.{name}")
        self.needed.add(NeededImport(module))
        return cst.parse_expression(path)

    def need_name(self, path: str) -> cst.Name:
        """Return the last part of a path as a name, and note its import."""
        module, _, name = path.rpartition(".")
        self.needed.add(NeededImport(module, name))
        return cst.Name(name)
