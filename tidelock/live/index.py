"""The predicate index: which views a row may be seen through, without asking each of them.

A filter is taken apart into branches, conjunctions of which one must be true wherever it is true. A branch lies in two
steps: by the values its columns must be equal to (`_eq`, `_in`, `_is_null`), all of them together, and among those with
the same values by the range of one more column. What has neither is a candidate for every row. So the cost of a row
is one look-up for every set of columns that filters compare, and what is found.

Whatever cannot be used of a filter is left out, which makes candidates more, never fewer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from itertools import chain, product
from operator import itemgetter
from typing import Any, Generic, TypeVar

from tidelock.live.branches import Branch, Range, branches_of
from tidelock.live.ranges import Ranges
from tidelock.where import Expression

V = TypeVar("V", bound=Hashable)


class PredicateIndex(Generic[V]):
    """Views by the rows they may match. A view is added once, until it is removed."""

    def __init__(self) -> None:
        #: by the columns that must be equal to something, in alphabetical order
        self._shapes: dict[tuple[str, ...], _Shape[V]] = {}
        self._branches: dict[V, list[Branch]] = {}
        #: views of several branches, which a row may find several times
        self._forked: set[V] = set()

    def __len__(self) -> int:
        return len(self._branches)

    @property
    def branches(self) -> Iterator[Branch]:
        """Those of all filters."""
        return chain.from_iterable(self._branches.values())

    def add(self, view: V, expression: Expression) -> None:
        assert view not in self._branches, "a view is added once"
        self._branches[view] = found = branches_of(expression)
        if len(found) > 1:
            self._forked.add(view)
        for branch in found:
            columns = tuple(branch.equal)
            if (shape := self._shapes.get(columns)) is None:
                shape = self._shapes[columns] = _Shape(columns)
            shape.add(view, branch)

    def remove(self, view: V) -> None:
        self._forked.discard(view)
        for branch in self._branches.pop(view):
            columns = tuple(branch.equal)
            # Another of its branches may have been the last there.
            if (shape := self._shapes.get(columns)) is not None:
                shape.remove(view, branch)
                if not shape.leaves:
                    del self._shapes[columns]

    def candidates(self, row: Mapping[str, Any]) -> Collection[V]:
        """The views that may match the row, each once: all that do, and few others."""
        found: list[V] = []
        for shape in self._shapes.values():
            if (leaf := shape.leaves.get(shape.values(row))) is not None:
                found += leaf.views
                for column, ranges in leaf.ranges.items():
                    ranges.collect(row[column], found)
        return dict.fromkeys(found) if self._forked and len(found) > 1 else found


class _Leaf(Generic[V]):
    """The views whose columns must be equal to the same values."""

    __slots__ = ("ranges", "views")

    def __init__(self) -> None:
        #: those of which no more is known
        self.views: dict[V, None] = {}
        #: the others, by the column whose range is known
        self.ranges: dict[str, Ranges[V]] = {}

    def add(self, view: V, range_: Range | None) -> None:
        if range_ is None:
            self.views[view] = None
            return
        if (ranges := self.ranges.get(range_.column)) is None:
            ranges = self.ranges[range_.column] = Ranges()
        ranges.add(view, range_)

    def remove(self, view: V, range_: Range | None) -> bool:
        """Whether nothing is left."""
        if range_ is None:
            self.views.pop(view, None)
        elif (ranges := self.ranges.get(range_.column)) is not None:
            ranges.remove(view)
            if not len(ranges):
                del self.ranges[range_.column]
        return not self.views and not self.ranges


class _Shape(Generic[V]):
    """The leaves of some columns."""

    __slots__ = ("leaves", "values")

    def __init__(self, columns: tuple[str, ...]) -> None:
        #: what a row has in these columns
        self.values: Callable[[Mapping[str, Any]], Any] = itemgetter(*columns) if columns else lambda row: ()
        self.leaves: dict[Any, _Leaf[V]] = {}

    def add(self, view: V, branch: Branch) -> None:
        for place in _places(branch):
            if (leaf := self.leaves.get(place)) is None:
                leaf = self.leaves[place] = _Leaf()
            leaf.add(view, branch.range)

    def remove(self, view: V, branch: Branch) -> None:
        for place in _places(branch):
            leaf = self.leaves.get(place)
            if leaf is not None and leaf.remove(view, branch.range):
                del self.leaves[place]


def _places(branch: Branch) -> Iterator[Any]:
    """Every combination of values that the branch lies at, in the form `itemgetter` has them: alone, or a tuple."""
    if len(branch.equal) == 1:
        yield from next(iter(branch.equal.values()))
    else:
        yield from product(*branch.equal.values())
