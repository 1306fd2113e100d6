"""The predicate index: finds the views that a row may match, without evaluating each of them.

A filter is split into branches, conjunctions of which one must be true wherever the filter is true. A branch is indexed
in two steps: by the values its columns must be equal to (`_eq`, `_in`, `_is_null`), all together, and among those with
the same values by the range of one more column. A branch with neither is a candidate for every row. So the cost of a
row is one lookup for every set of columns that filters compare, plus the candidates.

Parts of a filter that cannot be used are ignored, which gives more candidates, never fewer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from itertools import chain, product
from operator import itemgetter
from typing import Any, Generic, TypeVar

from tidelock.views.branches import Branch, ColumnRange, branches_of
from tidelock.where import Expression

V = TypeVar("V", bound=Hashable)

#: this few need no tree: they match every value
_WAITING_MAX = 8


class PredicateIndex(Generic[V]):
    """Views by the rows they may match. A view is added once, until it is removed."""

    def __init__(self) -> None:
        #: by the columns that must be equal to something, in alphabetical order
        self._shapes: dict[tuple[str, ...], _Shape[V]] = {}
        self._branches: dict[V, list[Branch]] = {}
        #: views with several branches, which a row may find several times
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
            # Another of its branches may already have been removed as the last one there.
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
        #: those without further conditions
        self.views: dict[V, None] = {}
        #: the others, by the column of their range
        self.ranges: dict[str, IntervalIndex[V]] = {}

    def add(self, view: V, range_: ColumnRange | None) -> None:
        if range_ is None:
            self.views[view] = None
            return
        if (ranges := self.ranges.get(range_.column)) is None:
            ranges = self.ranges[range_.column] = IntervalIndex()
        ranges.add(view, range_)

    def remove(self, view: V, range_: ColumnRange | None) -> bool:
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
        #: the values of a row in these columns
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
    """Every combination of values of the branch, in the form of `itemgetter`: a single value, or a tuple."""
    if len(branch.equal) == 1:
        yield from next(iter(branch.equal.values()))
    else:
        yield from product(*branch.equal.values())


class IntervalIndex(Generic[V]):
    """Finds which of many intervals of one column contain a value, at the cost of a search plus the results.

    Intervals are in trees, which are built once and never changed. Added intervals wait until there are enough for a
    tree, which absorbs trees that are not larger: so thousands added one by one are sorted a few times each, not at
    every lookup. Removed ones are filtered out of the results until half of all are gone. The intervals of one owner
    are added together and removed together.
    """

    __slots__ = ("_gone", "_owned", "_trees", "_waiting")

    def __init__(self) -> None:
        self._owned: dict[V, list[ColumnRange]] = {}
        #: owners that are in no tree yet
        self._waiting: dict[V, None] = {}
        #: from large to small; an owner is in one of them
        self._trees: list[_Tree[V]] = []
        #: owners that are still in a tree
        self._gone: set[V] = set()

    def __len__(self) -> int:
        return len(self._owned)

    def add(self, owner: V, range_: ColumnRange) -> None:
        if owner in self._gone:
            self._plant(list(self._owned))
        self._owned.setdefault(owner, []).append(range_)
        self._waiting[owner] = None

    def remove(self, owner: V) -> None:
        """Doing it again does nothing."""
        if self._owned.pop(owner, None) is None:
            return
        if owner in self._waiting:
            del self._waiting[owner]
        else:
            self._gone.add(owner)
        if len(self._gone) > len(self._owned):
            self._plant(list(self._owned))

    def collect(self, value: Any, found: list[V]) -> None:
        """Add the owners of the ranges that contain a value, and a few more; an owner of two such ranges is added
        twice.
        """
        if value is None:
            return
        if len(self._waiting) > _WAITING_MAX:
            self._settle()
        found += self._waiting
        in_trees = found if not self._gone else []
        for tree in self._trees:
            tree.collect(value, in_trees)
        if self._gone:
            found += [owner for owner in in_trees if owner not in self._gone]

    def _settle(self) -> None:
        """Build a tree of the waiting ones, and of all trees that are not larger."""
        owners = list(self._waiting)
        kept = self._trees
        while kept and len(kept[-1].owners) <= len(owners):
            owners += kept.pop().owners
        alive = [owner for owner in owners if owner in self._owned]
        self._gone.difference_update(owners)
        self._waiting = {}
        kept.append(_Tree(alive, self._owned))

    def _plant(self, owners: Sequence[V]) -> None:
        """Merge all into one tree."""
        self._waiting, self._gone = {}, set()
        self._trees = [_Tree(owners, self._owned)] if owners else []


class _Tree(Generic[V]):
    """A segment tree over the possible positions: at each threshold, before it, and after the last.

    An interval is stored at the few nodes that cover it, and a value finds them on the path from its position to the
    root.
    """

    __slots__ = ("_above", "_nodes", "_places", "_thresholds", "owners")

    def __init__(self, owners: Sequence[V], owned: Mapping[V, Sequence[ColumnRange]]) -> None:
        self.owners = owners
        ranges = [(owner, range_) for owner in owners for range_ in owned[owner]]
        found = {end for _, range_ in ranges for end in (range_.low, range_.high) if end is not None}
        self._thresholds: list[Any] = sorted(found)
        self._places = 2 * len(self._thresholds) + 1
        place = {threshold: 2 * number + 1 for number, threshold in enumerate(self._thresholds)}
        self._nodes: list[list[V]] = [[]] * (2 * self._places)
        for owner, range_ in ranges:
            first = 0 if range_.low is None else place[range_.low] + (not range_.low_included)
            end = self._places if range_.high is None else place[range_.high] + range_.high_included
            self._lay(owner, first, end)
        self._above = self._ways()

    def collect(self, value: Any, found: list[V]) -> None:
        thresholds, nodes, above = self._thresholds, self._nodes, self._above
        number = bisect_left(thresholds, value) if value == value else len(thresholds)  # NaN is above every number
        on_threshold = number < len(thresholds) and thresholds[number] == value
        node = self._places + 2 * number + on_threshold
        while node:
            found += nodes[node]
            node = above[node]

    def _lay(self, owner: V, first: int, end: int) -> None:
        left, right = first + self._places, end + self._places
        while left < right:
            if left & 1:
                self._put(left, owner)
                left += 1
            if right & 1:
                right -= 1
                self._put(right, owner)
            left, right = left >> 1, right >> 1

    def _put(self, node: int, owner: V) -> None:
        if self._nodes[node]:
            self._nodes[node].append(owner)
        else:
            self._nodes[node] = [owner]

    def _ways(self) -> list[int]:
        """The next non-empty node above each; 0 for none."""
        above = [0] * len(self._nodes)
        for node in range(2, len(self._nodes)):
            parent = node >> 1
            above[node] = parent if self._nodes[parent] else above[parent]
        return above
