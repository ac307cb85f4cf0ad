"""What the agent reads: the last k turns, and notes that cannot break out of their delimiters."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from plain_words import TASK, Plain, Recalling
from scripted import Words

from tacit.core.types import PLAIN, Condition, Observation, Transition
from tacit.prompts.history import CLOSE, OPEN, History, frame_note
from tacit.rollout.encoding import fit_prompt


def prompts(context, turns=4, condition=PLAIN):
    reader = context.begin(TASK, condition)
    out = []
    for t in range(turns):
        out.append(reader.read(Observation(f"o{t}", ("a",))))
        assert reader.record(f"a{t}", Transition(Observation(f"o{t + 1}"))) == {}
    return out


@pytest.mark.parametrize(
    ("turns", "history"),
    [
        (0, ()),
        (2, ("2: saw o1, did a1", "3: saw o2, did a2")),
        (None, ("1: saw o0, did a0", "2: saw o1, did a1", "3: saw o2, did a2")),
        (9, ("1: saw o0, did a0", "2: saw o1, did a1", "3: saw o2, did a2")),
    ],
)
def test_history_shows_the_last_k_turns(turns, history):
    last = prompts(History(Plain(), turns))[-1]
    assert last.history == history
    assert last.text == "\n".join(["task: win", *history, "4: see o3 ['a']", "answer tags"])


def test_first_prompt_has_no_history():
    first = prompts(History(Plain(), None))[0]
    assert first.history == () and first.now == "1: see o0 ['a']"


def test_context_settings_control_admissible_actions_and_style():
    last = prompts(History(Plain(), 0, admissible=False, style="bare"))[-1]
    assert last.now == "4: see o3" and last.request == "answer bare"


def test_prompt_mentions_history_only_when_shown():
    assert [p.now for p in prompts(History(Recalling(), 0, admissible=False))][-1] == "4: see o3"
    first, second, *_ = prompts(History(Recalling(), 2, admissible=False))
    assert first.now == "1: see o0", "there is no past yet"
    assert second.now == "after what stands above, 2: see o1"


def test_prompt_does_not_mention_truncated_history():
    last = prompts(History(Recalling(), 2, admissible=False))[-1]
    once, twice = last.without_oldest(), last.without_oldest().without_oldest()
    assert len(once.history) == 1 and once.now == "after what stands above, 4: see o3"
    assert twice.history == () and twice.now == "4: see o3" and "above" not in twice.text
    fitted, _, fits = fit_prompt(last, Words(20), 4)
    assert fits and fitted == twice
    plain = prompts(History(Plain(), 2, admissible=False))[-1]
    assert plain.without_oldest().without_oldest().now == plain.now, "a wording that never speaks of it has nothing to change"


def test_episodes_do_not_share_history():
    context = History(Plain(), None)
    assert prompts(context)[0].history == () == prompts(context)[0].history


def test_note_of_a_condition_follows_the_task():
    last = prompts(History(Plain(), 0), condition=Condition("guided", "look first"))[-1]
    assert last.text.splitlines()[:4] == ["task: win", "<note>", "look first", "</note>"]
    assert prompts(History(Plain(), 0))[-1].task_note == ""


def test_note_is_delimited_and_bounded():
    assert frame_note(" look \n") == "<note>\nlook\n</note>"
    assert frame_note("x" * 9000) == f"<note>\n{'x' * 8000}\n</note>"
    assert frame_note("abc", limit=2) == "<note>\nab\n</note>"


@pytest.mark.parametrize("note", ["", "  \n", "</note>", "</note> </note>", "<note>\n</note>"])
def test_empty_note_is_left_out(note):
    assert frame_note(note) == ""


@pytest.mark.parametrize(
    "tag",
    [
        "</note x>",
        "</note/>",
        "</note\u200b>",
        "<\u200b/note>",
        "</no\u200bte>",
        '<note kind="system">',
        "</\nNOTE\n>",
        "</note\u00a0>",
    ],
)
def test_note_delimiters_inside_a_note_are_removed(tag):
    assert frame_note(f"before {tag}after") == "<note>\nbefore after\n</note>"
    assert frame_note(f"before </no{tag}te>after") == "<note>\nbefore after\n</note>"


@pytest.mark.parametrize("text", ["a <notebook> b", "a < b and note c > d", "<notes>", "if x <note_2> then"])
def test_similar_tags_in_a_note_are_kept(text):
    assert frame_note(text) == f"<note>\n{text}\n</note>"


pieces = st.lists(
    st.sampled_from(
        ["<note>", "</note>", "</NOTE >", "</", "<", "note", ">", "/", " ", "no", "te>", "</n", "ote>", "x", "\u200b"]
    ),
    max_size=30,
).map("".join)


@given(st.one_of(pieces, st.text()), st.integers(1, 60))
@example("</no</note>te>", 2000)
@example("<<note>/note>", 2000)
def test_note_cannot_close_its_own_frame(note, limit):
    framed = frame_note(note, limit)
    if framed:
        assert framed.startswith(f"{OPEN}\n") and framed.endswith(f"\n{CLOSE}")
        inside = framed[len(OPEN) + 1 : -len(CLOSE) - 1]
        assert inside.strip() and len(inside) <= limit
        assert not re.search(r"<\s*/?\s*note(\s[^<>]*)?/?>", inside, re.IGNORECASE)


def test_framing_a_hostile_note_takes_linear_time():
    began = time.process_time()
    frame_note("</note" * 40_000 + ">" * 40_000)
    assert time.process_time() - began < 10, "linear: milliseconds; quadratic: minutes"


def test_framing_invisible_characters_is_fast():
    began = time.process_time()
    for _ in range(20):
        frame_note("<" + "\u3164" * 1999)
    assert time.process_time() - began < 1.0
