"""Keys: the texts of keys of several columns, for whole Arrow columns at a time."""

from __future__ import annotations

import json
from hashlib import sha256

import pyarrow as pa
import pyarrow.compute as pc

from tidelock.instants import format_instant

_SPECIAL = r'["\\\x00-\x1f]'
_SECOND = 1_000_000_000
#: longest key that stays as it is. With a tenant's name, of a KiB at most, it fits into an index, which Postgres ends
#: at 2,704 bytes
BYTES_MAX = 1_024
#: what is kept of a longer one, before its digest
LETTERS_KEPT = 200


def joined(*members: pa.Array) -> pa.Array:
    """Compact JSON arrays of members that are JSON texts already; null becomes `null`."""
    texts = [pc.fill_null(member, "null") for member in members]
    return pc.binary_join_element_wise("[", pc.binary_join_element_wise(*texts, ","), "]", "")


def bounded(keys: pa.Array) -> pa.Array:
    """Keys that an index can hold: of a longer one the beginning, and the digest of all of it.

    A group is as long a text as producers like, and no event may stop the fold. What was cut does not end with a
    bracket, so it is nobody else's key.
    """
    long = pc.fill_null(pc.greater(pc.binary_length(keys), BYTES_MAX), False)
    if not pc.any(long).as_py():
        return keys
    cut = [f"{key[:LETTERS_KEPT]}...{sha256(key.encode()).hexdigest()}" for key in keys.filter(long).to_pylist()]
    return pc.replace_with_mask(keys, long, pa.array(cut, pa.string()))


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


def instant_strings(instants: pa.Array) -> pa.Array:
    """Instants as texts of RFC 3339, each written once."""
    encoded = instants.dictionary_encode()
    texts = pa.array([format_instant(instant) for instant in encoded.dictionary.to_pylist()], pa.string())
    return texts.take(encoded.indices)
