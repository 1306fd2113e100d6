"""Aggregates: the state of an open window, to which rows can be added without rounding.

A state is a set of columns, numbered as the window selects them. A single row has a state just like many rows: states
merge in any order, and the same rows always leave the same bytes. Sets and histograms are strings in sorted order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelock.arrow import column
from tidelock.decimals import NUMBER_CHARACTERS_MAX, plain_decimal
from tidelock.definitions.windows import PERCENTILES, Aggregate
from tidelock.fold.kernel.amounts import average
from tidelock.fold.kernel.runs import Array, Places
from tidelock.tables import histogram_number

#: an aggregate over single values -> its state of one row
Values = Callable[[Aggregate], pa.Array]

_SOME = pc.ScalarAggregateOptions(skip_nulls=True, min_count=1)

# Members of a set are separated by a character that is escaped with two letters inside members.
_BETWEEN = "\x1f"
_ESCAPES = (("\\", "\\b"), (_BETWEEN, "\\s"))

# Of JSON texts.
_NUMBER = r"\A-?[0-9]"
_PLAIN_NUMBER = r"\A-?(?:[1-9][0-9]*|(?:0|[1-9][0-9]*)\.[0-9]*[1-9])\z|\A0\z"

# The bucket of a double is given by sign, exponent and seven bits of the mantissa.
_DROPPED_BITS = 45
_MIDDLE = 1 << (_DROPPED_BITS - 1)


def initial(
    aggregates: Sequence[Aggregate], values: Values, times: pa.Array, sequences: pa.Array
) -> dict[str, pa.Array]:
    """The states of single rows."""
    found: dict[str, pa.Array] = {}
    for number, aggregate in enumerate(aggregates):
        if aggregate.column is None:
            found[f"count_{number}"] = pa.repeat(pa.scalar(1, pa.int64()), len(times))
            continue
        if aggregate.function in PERCENTILES:
            if histogram_number(number, aggregates) == number:
                found[f"buckets_{number}"] = _single_buckets(values(aggregate))
            continue
        value = values(aggregate)
        if aggregate.function == "unique_count":
            found[f"texts_{number}"] = _escaped(value)
            continue
        there = pc.is_valid(value)
        if aggregate.function in ("count", "avg"):
            found[f"count_{number}"] = there.cast(pa.int64())
        if aggregate.function != "count":
            found[f"{'sum' if aggregate.function in ('sum', 'avg') else 'value'}_{number}"] = value
        if aggregate.function in ("first", "last"):
            found[f"time_{number}"] = pc.if_else(there, times, None)
            found[f"sequence_{number}"] = pc.if_else(there, sequences, None)
    return found


def merged(pieces: pa.Table, ids: Places, aggregates: Sequence[Aggregate], others: Mapping[str, str]) -> pa.Table:
    """Merge the pieces of each id into one row, in the order of the ids, which are dense from 0.

    `others` are the columns besides the states: how Arrow aggregates them, or `any` if the pieces of an id agree.
    """
    count = int(ids.max()) + 1 if len(ids) else 0
    names = [name for name in pieces.column_names if name in others or _is_state(name)]
    if count == len(ids) and (ids[1:] > ids[:-1]).all():
        return pieces.select(names)
    wanted = [(name, how, _SOME) for name, how in others.items() if how != "any"]
    for number, aggregate in enumerate(aggregates):
        match aggregate.function:
            case "min" | "max":
                wanted.append((f"value_{number}", aggregate.function, _SOME))
            case "sum" | "avg":
                wanted.append((f"sum_{number}", "sum", _SOME))
        if aggregate.function in ("count", "avg"):
            wanted.append((f"count_{number}", "sum", _SOME))
    found = _grouped(pieces, ids, wanted)
    some = np.empty(count, np.int64)
    some[ids[::-1]] = np.arange(len(ids))[::-1]
    for name, how in others.items():
        if how == "any":
            found = found.append_column(name, column(pieces, name).take(pa.array(some)))
    for number, aggregate in enumerate(aggregates):
        if aggregate.function in ("first", "last"):
            rows = _ends(pieces, ids, count, number, aggregate.function)
            for name in (f"value_{number}", f"time_{number}", f"sequence_{number}"):
                found = found.append_column(name, column(pieces, name).take(rows))
        elif aggregate.function == "unique_count":
            name = f"texts_{number}"
            found = found.append_column(name, _united(column(pieces, name), ids, count))
        elif (name := f"buckets_{number}") in pieces.column_names:
            found = found.append_column(name, _added(column(pieces, name), ids, count))
    return found.select(names)


def _is_state(name: str) -> bool:
    return name.split("_")[0] in ("sum", "count", "value", "time", "sequence", "texts", "buckets")


def _grouped(pieces: pa.Table, ids: Places, wanted: list[tuple[str, str, pc.ScalarAggregateOptions]]) -> pa.Table:
    names = list(dict.fromkeys(name for name, _, _ in wanted))
    rows = pieces.select(names).append_column("id", pa.array(ids))
    found = rows.group_by("id", use_threads=False).aggregate(wanted)
    renamed = {f"{name}_{how}": name for name, how, _ in wanted}
    found = found.rename_columns([renamed.get(name, name) for name in found.column_names])
    numbers = column(found, "id").to_numpy()
    if (numbers[1:] < numbers[:-1]).any():
        found = found.take(pa.array(np.argsort(numbers)))
    return found.drop_columns(["id"])


def _ends(pieces: pa.Table, ids: Places, count: int, number: int, end: str) -> pa.Array:
    """Where the first or last value of each id is, by time and sequence; rows without a value are ignored."""
    times, sequences = (column(pieces, f"{name}_{number}") for name in ("time", "sequence"))
    there = np.flatnonzero(times.is_valid().to_numpy(False))
    own, time, sequence = ids[there], times.drop_null().to_numpy(), sequences.drop_null().to_numpy()
    order = np.lexsort((sequence, time))
    order = order[::-1] if end == "first" else order
    places = np.full(count, -1, np.int64)
    # Of several rows written to one place the last wins.
    places[own[order]] = there[order]
    return pa.array(places, mask=places < 0)


def bits_of(values: pa.Array) -> pa.Array:
    """A unique string for each double, the same on every machine; 0.0 and -0.0 share one."""
    bits = pc.fill_null(values.cast(pa.float64()), 0.0).to_numpy(False) + 0.0
    return pc.if_else(values.is_valid(), pa.array(bits.view(np.int64)).cast(pa.string()), None)


def texts_of(values: pa.Array) -> pa.Array:
    """What JSON texts are counted by: a string's characters, a number in plain notation, anything else as it is.

    Most are in that form as they stand. The others are written again once for each spelling, not for each row.
    """
    spellings = values.dictionary_encode()
    texts = spellings.dictionary
    strings = pc.starts_with(texts, '"')
    found = pc.if_else(strings, pc.utf8_slice_codeunits(texts, 1, -1), texts)
    plain = pc.or_(pc.match_substring_regex(texts, _PLAIN_NUMBER), pc.invert(pc.match_substring_regex(texts, _NUMBER)))
    others = pc.if_else(strings, pc.match_substring(texts, "\\"), pc.invert(plain))
    written = [_written(text) for text in texts.filter(others).to_pylist()]
    found = pc.replace_with_mask(found, others, pa.array(written, pa.string()))
    return found.take(spellings.indices)


def _written(text: str) -> str:
    if text.startswith('"'):
        return str(json.loads(text))
    plain = plain_decimal(text, NUMBER_CHARACTERS_MAX, NUMBER_CHARACTERS_MAX)
    return text if plain is None else plain


def _escaped(texts: pa.Array) -> pa.Array:
    for letter, written in _ESCAPES:
        texts = pc.replace_substring(texts, letter, written)
    return texts


def _united(sets: pa.Array, ids: Places, count: int) -> pa.Array:
    """The union of the sets of each id."""
    lists = pc.split_pattern(sets, _BETWEEN)
    own = pa.array(ids).take(pc.list_parent_indices(lists))
    members = pa.table({"id": own, "member": pc.list_flatten(lists)})
    distinct = members.group_by(["id", "member"], use_threads=False).aggregate([])
    distinct = distinct.sort_by([("id", "ascending"), ("member", "ascending")])
    return _joined(column(distinct, "member"), column(distinct, "id").to_numpy(), count, _BETWEEN)


def _joined(texts: pa.Array, ids: Places, count: int, between: str) -> pa.Array:
    """The strings of each id joined, given sorted ids; null if there are none."""
    offsets = np.searchsorted(ids, np.arange(count + 1))
    found = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), texts), between)
    return pc.if_else(pa.array(offsets[1:] > offsets[:-1]), found, None)


def _single_buckets(values: pa.Array) -> pa.Array:
    numbers = buckets_of(pc.fill_null(values, 0.0).to_numpy(False))
    texts = pc.binary_join_element_wise(pa.array(numbers).cast(pa.string()), "1", ":")
    return pc.if_else(pc.is_valid(values), texts, None)


def buckets_of(values: Array) -> Places:
    """The buckets of doubles, in the order of the values: zero is 0, negative values have negative numbers."""
    sizes: Places = (np.abs(values).view(np.int64) >> _DROPPED_BITS) + 1
    found: Places = np.where(values == 0, 0, np.where(values < 0, -sizes, sizes))
    return found


def middles_of(buckets: Places) -> Array:
    """The middle of each bucket."""
    sizes = ((np.abs(buckets) - 1) << _DROPPED_BITS) + _MIDDLE
    values = np.where(buckets == 0, 0, sizes).view(np.float64)
    found: Array = np.where(buckets < 0, -values, values)
    return found


def _counted(histograms: pa.Array, ids: Places) -> tuple[Places, Places, Places]:
    """Ids, buckets and counts of histograms, in order."""
    lists = pc.split_pattern(histograms, ",")
    own = ids[pc.list_parent_indices(lists).to_numpy()]
    numbers = pc.list_flatten(pc.split_pattern(pc.list_flatten(lists), ":")).cast(pa.int64()).to_numpy()
    buckets, counts = numbers[0::2], numbers[1::2]
    order = np.lexsort((buckets, own))
    own, buckets, counts = own[order], buckets[order], counts[order]
    begins = np.ones(len(own), np.bool_)
    begins[1:] = (own[1:] != own[:-1]) | (buckets[1:] != buckets[:-1])
    starts = np.flatnonzero(begins)
    return own[starts], buckets[starts], np.add.reduceat(counts, starts) if len(starts) else counts


def _added(histograms: pa.Array, ids: Places, count: int) -> pa.Array:
    """The sum of the histograms of each id."""
    own, buckets, counts = _counted(histograms, ids)
    texts = [pa.array(numbers).cast(pa.string()) for numbers in (buckets, counts)]
    return _joined(pc.binary_join_element_wise(*texts, ":"), own, count, ",")


def results(aggregates: Mapping[str, Aggregate], states: pa.Table) -> dict[str, pa.Array]:
    """The results of states for the window's table."""
    found: dict[str, pa.Array] = {}
    for number, (name, aggregate) in enumerate(aggregates.items()):
        if (percent := PERCENTILES.get(aggregate.function)) is not None:
            own = histogram_number(number, list(aggregates.values()))
            found[name] = _percentiles(column(states, f"buckets_{own}"), percent)
            continue
        match aggregate.function:
            case "count":
                found[name] = column(states, f"count_{number}")
            case "sum":
                found[name] = column(states, f"sum_{number}")
            case "avg":
                found[name] = average(column(states, f"sum_{number}"), column(states, f"count_{number}"))
            case "unique_count":
                sizes = pc.add(pc.count_substring(column(states, f"texts_{number}"), _BETWEEN), 1)
                found[name] = pc.fill_null(sizes, 0).cast(pa.int64())
            case _:
                found[name] = column(states, f"value_{number}")
    return found


def _percentiles(histograms: pa.Array, percent: int) -> pa.Array:
    """The value at rank ceil(p * n), to the precision of its bucket; null if there is no value."""
    rows = np.arange(len(histograms))
    own, buckets, counts = _counted(histograms, rows)
    summed = np.cumsum(counts)
    ends = np.searchsorted(own, rows, side="right")
    through = np.concatenate([np.zeros(1, np.int64), summed])
    before, totals = through[np.searchsorted(own, rows)], through[ends]
    ranks = before - (-(percent * (totals - before)) // 100)
    some = totals > before
    places = np.searchsorted(summed, ranks[some])
    values = np.zeros(len(rows))
    values[some] = middles_of(buckets[places])
    return pa.array(values, mask=~some)
