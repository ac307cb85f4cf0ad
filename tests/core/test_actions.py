"""From what was written to what was meant."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.core.actions import BARE, CALLS, FORMATS, TAGS, Parsed, Tags
from tacit.core.errors import TacitError
from tacit.core.world import Brief, format_of


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
    assert TAGS.parse(text) == Parsed(action, valid)


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
    assert BARE.parse(text) == Parsed(action, valid)


words = st.text(st.characters(codec="ascii", categories=("Ll", "Nd"), include_characters=" ()+,"), min_size=1)


@given(words, words, st.sampled_from([TAGS, BARE]))
def test_what_a_demonstration_writes_is_what_it_meant(action, thought, form):
    assert form.parse(form.write(action, thought)) == Parsed(action.strip(), bool(action.strip()))


@given(st.text(), st.sampled_from([TAGS, BARE, Tags(("search", "answer"), keep_case=True)]))
def test_whatever_is_written_means_something_or_nothing(text, form):
    parsed = form.parse(text)
    assert parsed.action or not parsed.valid


def test_a_completion_is_over_where_its_action_is():
    assert TAGS.stop == ("</action>",) and TAGS.write("go").endswith("</action>") and TAGS.thinks
    assert "\n" in BARE.stop and "\n" not in BARE.write("go") and not BARE.thinks
    assert Tags(("search", "answer")).stop == ("</search>", "</answer>")


SEARCH = Tags(("search", "answer"), keep_case=True)


@pytest.mark.parametrize(
    ("text", "action", "valid"),
    [
        ("<think>hm</think><search>Who wrote Emma?</search>", "search Who wrote Emma?", True),
        ("<think>hm</think><Answer> Jane Austen </ANSWER>", "answer Jane Austen", True),
        # the one that is opened first counts, and only a complete one
        ("<think>hm</think><answer>A</answer><search>b</search>", "answer A", True),
        ("<think>hm</think><search>b <answer>A</answer>", "answer A", True),
        ("<think>hm</think><search></search>", "", False),
        ("<search>Emma</search>", "search Emma", False),
        ("<think>hm</think><action>look</action>", "k>hm</think><action>look</action>"[-30:], False),
        # a letter that becomes two in lower case moves nothing
        ("<think>hm</think>İ<search>İstanbul</search>", "search İstanbul", True),
    ],
)
def test_other_tags_are_other_actions_and_keep_their_case(text, action, valid):
    assert SEARCH.parse(text) == Parsed(action, valid)


@given(words, st.sampled_from(["search", "answer"]))
def test_the_first_word_of_an_action_is_its_tag(said, kind):
    action = f"{kind} {said.strip()}"
    if said.strip():
        assert SEARCH.parse(SEARCH.write(action, "so")) == Parsed(action, True)


def test_an_action_that_no_tag_can_hold_is_refused():
    with pytest.raises(TacitError, match="'look around' begins with none of search, answer"):
        SEARCH.write("look around")


def test_what_a_format_may_leave_out():
    plain = Tags(thinks=False, cjk=True)
    assert plain.write("go") == "<action>go</action>" and plain.parse("<action>去</action>") == Parsed("去", True)
    assert plain.write("go", "hm") == "<think>hm</think><action>go</action>"


def test_a_wording_has_the_formats_it_says_and_the_usual_ones_beside():
    class Words(Brief):
        formats = {"tags": SEARCH}

    assert format_of(Words(), "tags") is SEARCH and format_of(Words(), "bare") is BARE
    assert format_of(Brief(), "tags") is TAGS and set(FORMATS) == {"tags", "bare", "tools"}
    assert format_of(Words(), "tools").kinds == SEARCH.kinds, "several kinds of action are several tools"
    assert format_of(Brief(), "tools") is CALLS
    with pytest.raises(TacitError, match=r"unknown style 'tag' of the wording Words. Did you mean 'tags'"):
        format_of(Words(), "tag")
