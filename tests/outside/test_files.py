"""Files that anybody may have written."""

from __future__ import annotations

import json

import pytest

from velodrome.outside.files import DEEPEST, check_depth, parse_json


@pytest.mark.parametrize("lists", [1, DEEPEST - 2, DEEPEST - 1])
def test_what_is_nested_as_deeply_as_may_be_is_read(lists):
    value = {"a": json.loads("[" * lists + "]" * lists)}
    check_depth(value)
    assert parse_json(json.dumps(value)) == value


@pytest.mark.parametrize("lists", [DEEPEST, 10 * DEEPEST])
def test_a_text_is_refused_where_what_it_says_is(lists):
    value = {"a": json.loads("[" * lists + "]" * lists)}
    for refuses, given in ((check_depth, value), (parse_json, json.dumps(value))):
        with pytest.raises(ValueError, match="nested more than 64 deep"):
            refuses(given)


def test_brackets_beside_one_another_or_in_names_are_not_deep():
    value = {"[" * DEEPEST: [[] for _ in range(DEEPEST)]}
    assert parse_json(json.dumps(value)) == value
