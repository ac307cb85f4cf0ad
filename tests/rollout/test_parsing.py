"""From what was written to what was meant."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.rollout.parsing import STOP_STRINGS, Parsed, parse_action, write_action


@pytest.mark.parametrize(
    ("text", "action", "valid"),
    [
        ("<think>hm</think><action>go east</action>", "go east", True),
        ("<think>hm</think>\n<action>\n Go East \n</action>", "go east", True),
        ("<think></think><action>x</action>", "x", True),
        ("<think>a</think><ACTION>x</ACTION>", "x", True),
        ("<think>a</think><action>x</action> and <action>y</action>", "x", True),
        # without its thought an action is heard, but invalid
        ("<action>x</action>", "x", False),
        ("<think>a<action>x</action>", "x", False),
        ("a</think><action>x</action>", "x", False),
        # nothing between the tags, or the tags the wrong way round
        ("<think>a</think><action></action>", "", False),
        ("<think>a</think><action>  </action>", "", False),
        ("<think>a</think></action>x<action>", "", False),
        # one tag missing, or both: the end of the text is heard
        ("<think>a</think><action>go", "<think>a</think><action>go", False),
        ("<think>a</think>Go</action>", "<think>a</think>go</action>", False),
        ("I go east", "i go east", False),
        ("x" * 40 + "the last words", "x" * 16 + "the last words", False),
        ("", "", False),
        # Chinese anywhere
        ("<think>向东</think><action>go east</action>", "go east", False),
        ("<think>hm</think><action>向东</action>", "向东", False),
        # other letters are no offence
        ("<think>où ça? ☃</think><action>café</action>", "café", True),
    ],
)
def test_tags(text, action, valid):
    assert parse_action(text, "tags") == Parsed(action, valid)


@pytest.mark.parametrize(
    ("text", "action", "valid"),
    [
        ("op(+, 1, 2)", "op(+, 1, 2)", True),
        ("  Go East \n", "Go East", True),
        ("\n\n first \nsecond", "first", True),
        ("", "", False),
        (" \n\t\n", "", False),
    ],
)
def test_bare(text, action, valid):
    assert parse_action(text, "bare") == Parsed(action, valid)


words = st.text(st.characters(codec="ascii", categories=("Ll", "Nd"), include_characters=" ()+,"), min_size=1)


@given(words, words, st.sampled_from(["tags", "bare"]))
def test_what_a_demonstration_writes_is_what_it_meant(action, thought, style):
    written = write_action(action, style, thought)
    assert parse_action(written, style) == Parsed(action.strip(), bool(action.strip()))


@given(st.text(), st.sampled_from(["tags", "bare"]))
def test_whatever_is_written_means_something_or_nothing(text, style):
    parsed = parse_action(text, style)
    assert parsed.action or not parsed.valid


def test_a_completion_is_over_where_its_action_is():
    assert STOP_STRINGS["tags"] == ("</action>",)
    assert write_action("go", "tags").endswith("</action>")
    assert "\n" in STOP_STRINGS["bare"] and "\n" not in write_action("go", "bare")
