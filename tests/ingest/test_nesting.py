"""Nesting: depth and cutting agree with a plain walk over the text."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelock.errors import RequestError
from tidelock.ingest.nesting import cut_below, depth

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='[]{}"\\,:ab', max_size=6),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(alphabet='[]{}"\\', max_size=4), inner, max_size=3)
    ),
    max_leaves=30,
)


def plain_depth(value: object) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(plain_depth, value), default=0) if isinstance(value, list) else 0


def plain_cut(value: object, kept: int) -> object:
    if not isinstance(value, list | dict):
        return value
    if kept == 0:
        return 0
    if isinstance(value, list):
        return [plain_cut(member, kept - 1) for member in value]
    return {name: plain_cut(member, kept - 1) for name, member in value.items()}


@given(VALUES, st.booleans())
def test_depth_is_that_of_the_value(value: object, spaced: bool) -> None:
    assert depth(json.dumps(value, indent=1 if spaced else None).encode()) == plain_depth(value)


@given(VALUES, st.integers(0, 5))
def test_what_is_cut_is_what_lies_deeper(value: object, kept: int) -> None:
    assert json.loads(cut_below(json.dumps(value).encode(), kept)) == plain_cut(value, kept)


@given(st.text(alphabet='[]{}",:1\\ ', max_size=40), st.integers(0, 3))
def test_no_text_is_too_broken_to_be_cut(text: str, kept: int) -> None:
    assert depth(cut_below(text.encode(), kept)) <= kept


@pytest.mark.parametrize("text", [b"[" * 2**23 + b"]" * 2**23, b'{"a":' * 10**6 + b"1" + b"}" * 10**6, b"[" * 2**24])
def test_the_deepest_body_is_cut_in_a_moment(text: bytes) -> None:
    assert depth(cut_below(text, 500)) <= 500


@pytest.mark.parametrize("text", [b"[" * 600 + b"[]," * 10**6, b"[" * 600 + b'"",' * 2 * 10**6])
def test_a_body_too_deep_and_too_restless_is_refused(text: bytes) -> None:
    with pytest.raises(RequestError, match="deeper than 500"):
        cut_below(text, 500)
