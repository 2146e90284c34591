"""A large object taken apart is what it is as a whole; what cannot be taken apart is never half believed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fuzzing import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from pbs_adapter.remote import parse_split
from pbs_adapter.remote.parse import ParseError, parse_nodes
from pbs_adapter.remote.parse_split import entries

leaves = st.text(st.sampled_from('ab"\\{}[],: \n\t') | st.characters(), max_size=8) | st.booleans() | st.integers()
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
)


@settings(max_examples=examples(100), deadline=None)
@given(st.dictionaries(st.text(max_size=6), st.dictionaries(st.text(max_size=4), values, max_size=4)), st.booleans())
def test_taken_apart_it_is_the_same(nodes: dict[str, Any], indented: bool) -> None:
    text = json.dumps({"timestamp": 1, "nodes": nodes, "more": {}}, indent=4 if indented else None).encode()
    before, parse_split.WHOLE = parse_split.WHOLE, 0
    try:
        apart = list(entries(text, "nodes"))
    finally:
        parse_split.WHOLE = before
    assert apart == list(entries(text, "nodes"))


@pytest.mark.parametrize("end", [b"", b"}", b'"x":{', b'"x":{"y":"'])
def test_one_that_is_cut_off_is_no_answer(end: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parse_split, "WHOLE", 1000)
    whole = json.dumps({"nodes": {f"n{number}": {"state": "free"} for number in range(1_000)}}).encode()
    with pytest.raises(ParseError):
        parse_nodes(whole[: len(whole) * 2 // 3] + end)


def test_one_entry_may_not_be_everything() -> None:
    flood = b'{"nodes":{"n":{"a":[' + b"{}," * 2_200_000 + b"1]}}}"
    with pytest.raises(ParseError, match="an entry of more than"):
        parse_nodes(flood)
