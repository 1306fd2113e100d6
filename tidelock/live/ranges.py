"""Ranges: which of many intervals of one column a value lies in, at the cost of a search and of what is found.

Intervals lie in trees, which are made once and never changed. What is added waits beside them until it is enough for a
tree, which takes in those that are not larger than itself: so thousands that come one by one are sorted a few times
each, not at every look. What is removed is left out of what is found until half of all is gone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from tidelock.live.branches import Range

V = TypeVar("V", bound=Hashable)

#: so few need no tree: they are found by every value
_WAITING_MAX = 8


class Ranges(Generic[V]):
    """Owners by their ranges of one column. What one owner has is added together, and removed together."""

    __slots__ = ("_gone", "_owned", "_trees", "_waiting")

    def __init__(self) -> None:
        self._owned: dict[V, list[Range]] = {}
        #: owners that are in no tree yet
        self._waiting: dict[V, None] = {}
        #: from large to small; an owner is in one of them
        self._trees: list[_Tree[V]] = []
        #: owners that are still in a tree
        self._gone: set[V] = set()

    def __len__(self) -> int:
        return len(self._owned)

    def add(self, owner: V, range_: Range) -> None:
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
        """Add the owners of the ranges that a value lies in, and a few more; twice who has two such ranges."""
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
        """Give those that wait a tree, with all the trees that are not larger."""
        owners = list(self._waiting)
        kept = self._trees
        while kept and len(kept[-1].owners) <= len(owners):
            owners += kept.pop().owners
        alive = [owner for owner in owners if owner in self._owned]
        self._gone.difference_update(owners)
        self._waiting = {}
        kept.append(_Tree(alive, self._owned))

    def _plant(self, owners: Sequence[V]) -> None:
        """One tree of all."""
        self._waiting, self._gone = {}, set()
        self._trees = [_Tree(owners, self._owned)] if owners else []


class _Tree(Generic[V]):
    """A segment tree over the places there are: on each threshold, before it, and behind the last.

    An interval lies at the few nodes that make it up, and a value finds those on the way from its place to the root.
    """

    __slots__ = ("_above", "_nodes", "_places", "_thresholds", "owners")

    def __init__(self, owners: Sequence[V], owned: Mapping[V, Sequence[Range]]) -> None:
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
        """The next node above each at which something lies; 0 for none."""
        above = [0] * len(self._nodes)
        for node in range(2, len(self._nodes)):
            parent = node >> 1
            above[node] = parent if self._nodes[parent] else above[parent]
        return above
