"""Logs of other agents: all formats give the same episode, thoughts are dropped, and a bad line costs only itself."""

from __future__ import annotations

import gzip
import json

import pytest
from household_logs import as_messages, as_react, household

from tacit.core.errors import TacitError
from tacit.training import imitation
from tacit.training.imitation import ReadReport, parse_recording, read_recordings
from tacit.worlds import get_environment

USER, SURE = {"role": "user", "content": "a room"}, {"goal": "g", "success": True}
LINE = household(1, ["heat"])[0]
PLAIN = parse_recording(1, LINE)


def in_alfworlds_manner(line: dict) -> dict:
    text = ""
    for turn in line["turns"]:
        text += f"{turn['saw']}\n> think: where could it be?\nOK.\n> {turn['action']}\n"
    return {"goal": line["goal"], "success": line["success"], "family": line["family"], "text": text + line["saw"]}


def with_calls(line: dict) -> dict:
    messages = []
    for turn in line["turns"]:
        call = {"function": {"name": "act", "arguments": json.dumps({"action": turn["action"]})}}
        messages += [{"role": "user", "content": turn["saw"]}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    return {
        **{k: line[k] for k in ("goal", "success", "family")},
        "messages": [*messages, {"role": "tool", "content": line["saw"]}],
    }


def as_eto(line: dict) -> dict:
    messages = [("human", "Interact with a household to solve a task."), ("gpt", "OK")]
    for turn in line["turns"]:
        messages += [("human", turn["saw"]), ("gpt", f"Thought: I should act.\nAction: {turn['action']}")]
    conversations = [{"from": who, "value": text} for who, text in [*messages, ("human", line["saw"])]]
    return {"id": 7, "goal": line["goal"], "family": line["family"], "conversations": conversations}


@pytest.mark.parametrize("form", [as_react, as_messages, in_alfworlds_manner, with_calls, as_eto])
def test_every_format_gives_the_same_episode(form) -> None:
    assert parse_recording(1, form(LINE)) == PLAIN


def test_thoughts_are_dropped() -> None:
    text = (
        "Observation: a room\nThought 1: Action is needed.\nI shall look.\nAction 1: look\nObservation 1: a hall\nAction 2: go"
    )
    found = parse_recording(1, {"goal": "g", "success": True, "text": text})
    assert found.actions == ("look", "go") and found.seen == ("a room", "a hall")
    for answer in ("<think>Action: no</think>look", "Thought: hm\nAction: look", "look", "<action>look</action>"):
        messages = [{"role": "user", "content": "Observation: a room"}, {"role": "assistant", "content": answer}]
        found = parse_recording(1, {"goal": "g", "success": True, "messages": messages})
        assert found.actions == ("look",) and found.seen == ("a room",)


@pytest.mark.parametrize(
    "texts",
    [
        ["think: I need a mug", "look"],
        ["> think: I need a mug", "> look"],
        ["Thought 1: I need a mug", "Action 1: look"],
        ["> think: I need a mug\n> look"],
        ["Thought: I need a mug. Action: look"],
        ["Thought: the action: go failed. Action 2:\nlook"],
    ],
)
def test_message_with_only_a_thought_is_not_a_turn(texts: list[str]) -> None:
    answers = ["OK."] * (len(texts) - 1) + ["a hall"]
    messages = [{"role": "user", "content": "a room"}]
    for text, answer in zip(texts, answers, strict=True):
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": answer}]
    found = parse_recording(1, {**SURE, "messages": messages})
    assert found.actions == ("look",) and found.seen == ("a room", "a hall")


def test_ok_answer_to_an_action_is_an_observation() -> None:
    messages = [USER, {"role": "assistant", "content": "look"}, {"role": "user", "content": "OK."}]
    assert parse_recording(1, {**SURE, "messages": messages}).seen == ("a room", "OK.")


def test_action_after_a_thought_is_found_in_text() -> None:
    text = "a room\nThought: hm Action: look\nObservation: a hall\nThought: so\nAction: go"
    found = parse_recording(1, {**SURE, "text": text})
    assert found.actions == ("look", "go") and found.seen == ("a room", "a hall")
    marked = parse_recording(1, {**SURE, "text": "a room\n> Thought 1: hm\nOK.\n> look\na hall"})
    assert marked.actions == ("look",) and marked.seen == ("a room", "a hall")


def test_empty_turn_marked_invalid_is_kept() -> None:
    turns = [{"saw": "a", "action": "", "valid": False}, {"saw": "a", "action": "look"}]
    assert parse_recording(1, {**SURE, "turns": turns}).parsed == (False, True)


def test_goal_is_found_in_the_first_observation() -> None:
    found = parse_recording(1, {"success": True, "text": "A room.\nYour task is to: put a mug in shelf.\n> look\nA room."})
    assert found.goal == "put a mug in shelf."


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({**SURE, "text": "Action: look"}, "there is no observation before action 1"),
        ({**SURE, "text": "a room"}, "no turns"),
        ({**SURE, "messages": [USER, {"role": "assistant", "content": "first\nthen"}]}, "message 2 has no action"),
        ({**SURE, "messages": [USER, {"role": "assistant", "content": "Thought: I must\nlook"}]}, "message 2 has no action"),
        ({**SURE, "messages": [USER, {"role": "assistant", "content": "<think>look at"}]}, "message 2 has no action"),
        ({**SURE, "messages": [USER, {"role": "assistant", "content": "think: hm"}]}, "no turns"),
        ({**SURE, "messages": [USER, {"role": "assistant", "content": "<action> </action>"}]}, "turn 1 has an empty action"),
        ({**SURE, "turns": [{"saw": "a", "action": "b"}, {"saw": "a", "action": " \n"}]}, "turn 2 has an empty action"),
        ({**SURE, "text": "a room\n> \nok\n> go"}, "turn 1 has an empty action"),
        ({**SURE, "messages": [USER, {"role": "assistant", "content": None}]}, "message 2 has no action"),
        ({**SURE, "messages": [USER, {"role": "robot", "content": "look"}]}, "message 2 has no role"),
        ({**SURE, "messages": [3]}, "message 1 has no role"),
        ({**SURE, "messages": [USER, {"role": "assistant", "tool_calls": [1]}]}, "does not call one tool with one argument"),
        ({**SURE, "messages": [{"role": "user", "content": [{"type": "image"}]}]}, "message 1 has no role"),
        ({**SURE, "turns": [{"saw": "a", "action": "b"}] * 10_001}, "10001 turns, more than 10000"),
        ({**SURE, "turns": [{"saw": "half \ud800", "action": "b"}]}, "turn 1 has half a character"),
        ({**SURE, "goal": "\udfff", "turns": [{"saw": "a", "action": "b"}]}, "half a character"),
        ({**SURE, "success": "yes", "text": "a\n> b"}, "does not say whether it was won"),
        ({"success": True, "text": "a\n> b"}, "names neither a task nor a goal"),
    ],
)
def test_unusable_episode_names_the_reason(line, reason) -> None:
    with pytest.raises(TacitError, match=reason):
        parse_recording(1, line)


def test_hostile_lines_cost_only_themselves(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(imitation, "LONGEST_LINE", 20_000)
    good = json.dumps(LINE).encode()
    lines = [
        good,
        b"\xff\xfe{}",
        b"\x00" * 100,
        b"[" * 15_000,
        b'{"goal": ' + b"9" * 5000 + b"}",
        b'{"goal": "' + b"x" * 50_000 + b'"}',
        b"null",
        b'{"goal": NaN, "success": true, "turns": [{}]}',
        b"",
        good,
    ]
    (tmp_path / "e.jsonl").write_bytes(b"\n".join(lines))
    reading = ReadReport()
    found = list(read_recordings(tmp_path / "e.jsonl", reading))
    assert [each.line for each in found] == [1, 10] and found[1].actions == PLAIN.actions
    reasons = {int(each.split(":")[0].removeprefix("line ")): each for each in reading.unusable}
    assert set(reasons) == {2, 3, 4, 5, 6, 7, 8}
    assert "not UTF-8" in reasons[2] and "nested too deeply" in reasons[4] and "longer than 20000 bytes" in reasons[6]
    assert "not a JSON object" in reasons[7]


def test_truncated_file_is_read_up_to_the_damage(tmp_path) -> None:
    many = [household(1, ["heat"])[0] for _ in range(1)] * 200
    whole = gzip.compress("\n".join(json.dumps({**line, "task": f"t{n}"}) for n, line in enumerate(many)).encode())
    (tmp_path / "e.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    reading = ReadReport()
    found = list(read_recordings(tmp_path / "e.jsonl.gz", reading))
    assert 0 < len(found) < 200 and "the file is truncated or damaged here" in reading.unusable[-1]


def test_eto_records(tmp_path) -> None:
    """ETO files are one JSON list without outcome and family. A reward below 1 is a loss."""
    sentence = "Your task is to boil water. First, focus on the substance."
    shop = {"conversations": [{"from": "human", "value": "shop"}, {"from": "gpt", "value": "Action: search[mug]"}], "goal": "g"}
    science = {
        "id": 3,
        "conversations": [
            {"from": "human", "value": "You are a helpful assistant."},
            {"from": "gpt", "value": "OK"},
            {"from": "human", "value": sentence},
            {"from": "gpt", "value": "Thought: hm.\nAction: look around"},
            {"from": "human", "value": "Observation: a kitchen"},
            {"from": "gpt", "value": "Thought: hm.\nAction: focus on water"},
        ],
    }
    entries = [science, {**shop, "reward": 1.0}, {**shop, "reward": 0.5}, {"conversations": [{"from": "dog", "value": "woof"}]}]
    reading, file = ReadReport(), tmp_path / "sft.json"
    file.write_text(json.dumps(entries, indent=1))
    found = list(read_recordings(file, reading))
    assert found[0].goal == sentence and found[0].seen == (sentence, "a kitchen")
    assert found[0].actions == ("look around", "focus on water")
    assert [each.success for each in found] == [True, True, False] and found[1].actions == ("search[mug]",)
    assert reading.unusable == ["line 4: message 1 has no role (system, user, assistant, tool), or no text"]
    with gzip.open(tmp_path / "sft.json.gz", "wt") as packed:
        packed.write("\ufeff" + json.dumps(entries))
    assert list(read_recordings(tmp_path / "sft.json.gz", ReadReport())) == found
    file.write_text(json.dumps(entries)[:-5])
    with pytest.raises(TacitError, match=r"sft\.json: a truncated or damaged JSON list"):
        list(read_recordings(file, ReadReport()))


def test_scienceworld_eto_record_finds_its_family() -> None:
    world = get_environment("scienceworld")
    known = imitation.TaskReplayer(world, world.tasks("train", 512, 0))
    goal = world.tasks_of("test", 1, 0, ("power",))[0].goal.replace("  ", " ")
    record = parse_recording(1, {"goal": goal, "success": True, "turns": [{"saw": goal, "action": "look around"}]})
    assert known.replay(record)[0].family == "power" and "live" not in vars(known), "no simulator is needed"
