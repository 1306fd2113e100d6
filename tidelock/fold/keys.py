"""Keys: the texts of keys of several columns, for whole Arrow columns at a time."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.compute as pc

_SPECIAL = r'["\\\x00-\x1f]'
_SECOND = 1_000_000_000


def joined(*members: pa.Array) -> pa.Array:
    """Compact JSON arrays of members that are JSON texts already; null becomes `null`."""
    texts = [pc.fill_null(member, "null") for member in members]
    return pc.binary_join_element_wise("[", pc.binary_join_element_wise(*texts, ","), "]", "")


def json_strings(texts: pa.Array) -> pa.Array:
    """Texts as JSON strings. Few need more than quotes, and those are left to Python."""
    quoted = pc.binary_join_element_wise('"', texts, '"', "")
    special = pc.fill_null(pc.match_substring_regex(texts, _SPECIAL), False)
    if not pc.any(special).as_py():
        return quoted
    escaped = [json.dumps(text, ensure_ascii=False) for text in texts.filter(special).to_pylist()]
    return pc.replace_with_mask(quoted, special, pa.array(escaped, pa.string()))


def period_strings(starts: pa.Array) -> pa.Array:
    """Starts of periods, which are whole seconds, as JSON strings. There are few: each is written once."""
    encoded = starts.dictionary_encode()
    moments = pc.divide(encoded.dictionary, _SECOND).cast(pa.timestamp("s"))
    return pc.strftime(moments, format='"%Y-%m-%dT%H:%M:%SZ"').take(encoded.indices)


def number_strings(numbers: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', numbers.cast(pa.string()), '"', "")
