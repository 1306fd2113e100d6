"""Collected fields: what a selection set comes to when fragments are put in and what is skipped is left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from graphql import (
    FieldNode,
    FragmentDefinitionNode,
    FragmentSpreadNode,
    GraphQLIncludeDirective,
    GraphQLSkipDirective,
    InlineFragmentNode,
    SelectionNode,
    SelectionSetNode,
    get_directive_values,
)
from graphql.execution import VariableValues

#: name in the answer -> the nodes that ask for it: the same field with the same arguments, by validation
Collected = dict[str, list[FieldNode]]


@dataclass(frozen=True, slots=True)
class Collector:
    """Collects in the documents of one operation. Every type with fields is an object type, so any fragment fits."""

    fragments: Mapping[str, FragmentDefinitionNode]
    variables: VariableValues

    def collect(self, selection_sets: Iterable[SelectionSetNode | None]) -> Collected:
        """The fields of some selection sets together, in the order in which they are first named."""
        found: Collected = {}
        visited: set[str] = set()
        for selection_set in selection_sets:
            self._visit(selection_set, found, visited)
        return found

    def inside(self, nodes: Iterable[FieldNode]) -> Collected:
        """The fields of a field."""
        return self.collect(node.selection_set for node in nodes)

    def _visit(self, selection_set: SelectionSetNode | None, found: Collected, visited: set[str]) -> None:
        for selection in () if selection_set is None else selection_set.selections:
            if not self._included(selection):
                continue
            match selection:
                case FieldNode():
                    found.setdefault(response_name(selection), []).append(selection)
                case InlineFragmentNode():
                    self._visit(selection.selection_set, found, visited)
                case FragmentSpreadNode() if selection.name.value not in visited:
                    visited.add(selection.name.value)
                    self._visit(self.fragments[selection.name.value].selection_set, found, visited)

    def _included(self, node: SelectionNode) -> bool:
        if not node.directives:
            return True
        skip = get_directive_values(GraphQLSkipDirective, node, self.variables)
        include = get_directive_values(GraphQLIncludeDirective, node, self.variables)
        return not (skip and skip["if"]) and not (include and not include["if"])


def response_name(node: FieldNode) -> str:
    return node.alias.value if node.alias else node.name.value
