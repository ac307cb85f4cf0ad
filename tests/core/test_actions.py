"""Action formats: parse completions, write demonstrations."""

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
        # an action without a thought is parsed but invalid
        ("<action>x</action>", "x", False),
        ("<think>a<action>x</action>", "x", False),
        ("a</think><action>x</action>", "x", False),
        # empty tags, or tags in the wrong order
        ("<think>a</think><action></action>", "", False),
        ("<think>a</think><action>  </action>", "", False),
        ("<think>a</think></action>x<action>", "", False),
        # one or both tags missing: the end of the text is the action
        ("<think>a</think><action>go", "<think>a</think><action>go", False),
        ("<think>a</think>Go</action>", "<think>a</think>go</action>", False),
        ("I go east", "i go east", False),
        ("x" * 40 + "the last words", "x" * 16 + "the last words", False),
        ("", "", False),
        # Chinese characters make it invalid
        ("<think>向东</think><action>go east</action>", "go east", False),
        ("<think>hm</think><action>向东</action>", "向东", False),
        # other non-ASCII characters are allowed
        ("<think>où ça? ☃</think><action>café</action>", "café", True),
    ],
)
def test_tags_format_parses_action_and_validity(text, action, valid):
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
def test_bare_format_parses_action_and_validity(text, action, valid):
    assert BARE.parse(text) == Parsed(action, valid)


words = st.text(st.characters(codec="ascii", categories=("Ll", "Nd"), include_characters=" ()+,"), min_size=1)


@given(words, words, st.sampled_from([TAGS, BARE]))
def test_written_action_parses_back_unchanged(action, thought, form):
    assert form.parse(form.write(action, thought)) == Parsed(action.strip(), bool(action.strip()))


@given(st.text(), st.sampled_from([TAGS, BARE, Tags(("search", "answer"), keep_case=True)]))
def test_valid_completion_always_has_an_action(text, form):
    parsed = form.parse(text)
    assert parsed.action or not parsed.valid


def test_stop_strings_match_the_end_of_an_action():
    assert TAGS.stop == ("</action>",) and TAGS.write("go").endswith("</action>") and TAGS.thinks
    assert "\n" in BARE.stop and "\n" not in BARE.write("go") and not BARE.thinks
    assert Tags(("search", "answer")).stop == ("</search>", "</answer>")


SEARCH = Tags(("search", "answer"), keep_case=True)


@pytest.mark.parametrize(
    ("text", "action", "valid"),
    [
        ("<think>hm</think><search>Who wrote Emma?</search>", "search Who wrote Emma?", True),
        ("<think>hm</think><Answer> Jane Austen </ANSWER>", "answer Jane Austen", True),
        # the first complete pair of tags counts
        ("<think>hm</think><answer>A</answer><search>b</search>", "answer A", True),
        ("<think>hm</think><search>b <answer>A</answer>", "answer A", True),
        ("<think>hm</think><search></search>", "", False),
        ("<search>Emma</search>", "search Emma", False),
        ("<think>hm</think><action>look</action>", "k>hm</think><action>look</action>"[-30:], False),
        # İ becomes two characters in lower case; the offsets stay correct
        ("<think>hm</think>İ<search>İstanbul</search>", "search İstanbul", True),
    ],
)
def test_custom_tags_prefix_the_action_and_keep_its_case(text, action, valid):
    assert SEARCH.parse(text) == Parsed(action, valid)


@given(words, st.sampled_from(["search", "answer"]))
def test_custom_tag_actions_parse_back_unchanged(text, kind):
    action = f"{kind} {text.strip()}"
    if text.strip():
        assert SEARCH.parse(SEARCH.write(action, "so")) == Parsed(action, True)


def test_writing_an_action_without_a_known_tag_is_refused():
    with pytest.raises(TacitError, match="'look around' has no tag: its first word must be one of search, answer"):
        SEARCH.write("look around")


def test_format_can_omit_thoughts_and_allow_chinese():
    plain = Tags(thinks=False, cjk=True)
    assert plain.write("go") == "<action>go</action>" and plain.parse("<action>去</action>") == Parsed("去", True)
    assert plain.write("go", "hm") == "<think>hm</think><action>go</action>"


def test_wording_formats_override_the_default_formats():
    class Words(Brief):
        formats = {"tags": SEARCH}

    assert format_of(Words(), "tags") is SEARCH and format_of(Words(), "bare") is BARE
    assert format_of(Brief(), "tags") is TAGS and set(FORMATS) == {"tags", "bare", "tools"}
    assert format_of(Words(), "tools").kinds == SEARCH.kinds, "several kinds of action are several tools"
    assert format_of(Brief(), "tools") is CALLS
    with pytest.raises(TacitError, match=r"unknown style 'tag' of the wording Words. Did you mean 'tags'"):
        format_of(Words(), "tag")
