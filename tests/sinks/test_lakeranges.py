"""Members of flat data are found by their patterns as they are by reading it: the texts that were sent."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelock.fold.streams import WHOLE, Member
from tidelock.sinks.lakeranges import FLAT, is_simple, member_texts, pattern

pytestmark = pytest.mark.check

_NAMES = ["a", "ms", "b", "a b", 'x"y', "a:b", "", "é"]
_WORDS = ["", "a", "null", "ms", "a,b", '"', "a:1", "é", "\n", "x}", "[", "true", "\\", "ms: 1", " "]
_NUMBERS = ["1", "1.10", "-0", "1e400", "12345678901234567890.1", "1E-5"]
_spaces = st.sampled_from(["", " ", "\n", "\t "])


def _objects(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    member = st.tuples(_spaces, st.sampled_from(_NAMES).map(json.dumps), _spaces, _spaces, values, _spaces)
    written = member.map(lambda m: f"{m[0]}{m[1]}{m[2]}:{m[3]}{m[4]}{m[5]}")
    return st.lists(written, max_size=4).map(lambda members: "{" + ",".join(members) + "}")


_values = st.recursive(
    st.sampled_from([*_NUMBERS, "null", "true", *map(json.dumps, _WORDS)])
    | st.sampled_from(_WORDS).map(lambda word: json.dumps(word, ensure_ascii=False)),
    lambda inner: st.lists(inner, max_size=2).map(lambda items: f"[{','.join(items)}]") | _objects(inner),
    max_leaves=4,
)


@given(_objects(_values), st.sampled_from(["a", "ms"]), st.booleans())
def test_a_pattern_finds_the_text_that_was_sent(data: str, name: str, raw: bool) -> None:
    if not re.search(FLAT, data):
        return
    member = Member((name,), raw)
    found = re.search(pattern(member), data)
    value = found[1] if found else "null"
    text = None if value == "null" else value if raw else re.sub('^"|"$', "", value)
    assert text == member_texts(data, [member])[0]


def test_what_is_nested_or_escaped_is_not_flat() -> None:
    for data in ('{"a":{}}', '{"a":[1]}', '{"a":"\\u0061"}', '{"a":"}"}', "[1]", '"a"', "7"):
        assert not re.search(FLAT, data)
    for data in ("{}", ' { "a" : 1.10, "b": "x: 1, y" }\n', '{"a":null}'):
        assert re.search(FLAT, data)


def test_only_members_of_the_first_level_with_plain_names_have_a_pattern() -> None:
    assert is_simple(Member(("ms",)))
    assert is_simple(WHOLE)
    assert not is_simple(Member(("a", "b")))
    assert not is_simple(Member(("a.b",)))
