"""The code world's tools: call formats, the editor, and shortened output."""

from __future__ import annotations

import json
import os

import pytest
from templates import REAL, talking_tokenizer

from tacit.core.chat import Call, Chat, Message
from tacit.engines.local.tokenizer import TextCodec
from tacit.prompts.history import History
from tacit.rollout.encoding import check_chat_support
from tacit.worlds.code import ENVIRONMENT
from tacit.worlds.code.tools import (
    CallError,
    Editor,
    FunctionTags,
    Lines,
    ToolCalls,
    check_action,
    normalize,
    read_line,
    shorten_lines,
    shown_lines,
    write_line,
)

ACTIONS = (
    "submit",
    "bash grep -rn 'def wrap' . | head",
    "bash python - <<'E'\\nprint(1)\\nE",
    "view .",
    "view spans/core.py",
    "view spans/core.py 10 40",
    "str_replace a.py     if x < y:\\n        pass ==>     if x <= y:\\n        pass",
    "str_replace a.py x ==\\> y ==> z",
    "str_replace a.py x ==> ",
    "create new.py one\\n\\ttwo \\\\n\\n",
    "insert a.py 3     return 1",
    "undo_edit a.py",
)


@pytest.mark.parametrize("form", [FunctionTags(), ToolCalls(), Lines()], ids=lambda form: type(form).__name__)
@pytest.mark.parametrize("action", ACTIONS)
def test_call_round_trips_in_every_format(form, action):
    parsed = form.parse(form.write(action))
    assert parsed.valid
    assert read_line(parsed.action) == read_line(action)
    assert write_line(read_line(action)).rstrip() == action.rstrip()


def test_function_tags_parse_multiline_arguments():
    text = (
        "I look at the file.\n\n<function=str_replace_editor>\n  <parameter=command>str_replace</parameter>\n"
        "  <parameter=path>/testbed/a.py</parameter>\n<parameter=old_str>\n    x = 1\n    y = 2\n</parameter>\n"
        "<parameter=new_str>\n    x = 2\n</parameter>\n</function>"
    )
    parsed = FunctionTags().parse(text)
    assert parsed.valid and parsed.thought == "I look at the file."
    arguments = read_line(parsed.action).arguments
    assert arguments["old_str"] == "    x = 1\n    y = 2" and arguments["new_str"] == "    x = 2"


@pytest.mark.parametrize(
    "text",
    [
        "I submit.", "<function=submit>", "<function=run>\n</function>", "submit",
        "<function=str_replace_editor>\n<parameter=command>delete</parameter>\n<parameter=path>/testbed</parameter>\n</function>",
    ],
)  # fmt: skip
def test_text_without_complete_call_is_invalid(text):
    parsed = FunctionTags().parse(text)
    assert not parsed.valid and check_action(parsed.action) is None


def test_two_calls_in_one_completion_are_invalid():
    once = "<function=submit>\n</function>"
    assert FunctionTags().parse(once).valid and not FunctionTags().parse(once + once).valid


def test_tool_calls_parse_json_calls():
    form = ToolCalls()
    view = {"command": "view", "path": "/testbed/a.py", "view_range": [2, 9]}
    text = f"<tool_call>\n{json.dumps({'name': 'str_replace_editor', 'arguments': view})}\n</tool_call>"
    assert form.parse(text).action == "view a.py 2 9"
    assert form.parse("<think>hm</think>" + text).thought == "hm"
    assert form.parse('{"name": "submit", "arguments": {}}').action == "submit"
    assert not form.parse('{"name": "other", "arguments": {}}').valid
    assert form.parse(form.write("execute_bash look")).action == "bash look"


def test_tool_schemas_list_arguments_and_survive_serialization():
    bash, editor, submit = ToolCalls().tools
    assert set(editor.schema()["function"]["parameters"]["properties"]) >= {"command", "path", "old_str", "view_range"}
    assert submit.schema()["function"]["parameters"]["properties"] == {}
    assert bash.schema()["function"]["parameters"]["required"] == ["command"]
    chat = Chat((Message("user", "hi"),), (bash, editor, submit))
    assert Chat.loads(chat.dumps()) == chat


@pytest.fixture
def editor(tmp_path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "a.py").write_text("one\ntwo\nthree\ntwo and a half\n")
    return Editor(tmp_path)


def run(editor: Editor, line: str) -> str:
    return editor.run(read_line(line))


def test_view_shows_directories_files_and_line_ranges(editor):
    assert run(editor, "view .") == "/testbed, two levels:\npkg/\npkg/a.py"
    assert run(editor, "view pkg/a.py 2 -1").split("\n")[1:] == ["     2\ttwo", "     3\tthree", "     4\ttwo and a half"]
    assert shown_lines(run(editor, "view pkg/a.py 2 3")) == ("pkg/a.py", {2: "two", 3: "three"})
    for wrong in (
        "view pkg/a.py 0 2",
        "view pkg/a.py 9 9",
        "view pkg/a.py 3",
        "view pkg/b.py",
        "view ../x",
        "view /etc/passwd",
    ):
        with pytest.raises(CallError):
            run(editor, wrong)


def test_undo_edit_reverts_each_edit(editor):
    before = (editor.folder / "pkg/a.py").read_text()
    assert "Edited /testbed/pkg/a.py" in run(editor, "str_replace pkg/a.py three ==> 3")
    run(editor, "insert pkg/a.py 0 zero")
    assert (editor.folder / "pkg/a.py").read_text() == "zero\none\ntwo\n3\ntwo and a half\n"
    run(editor, "undo_edit pkg/a.py")
    run(editor, "undo_edit pkg/a.py")
    assert (editor.folder / "pkg/a.py").read_text() == before
    with pytest.raises(CallError, match="no edit"):
        run(editor, "undo_edit pkg/a.py")


def test_str_replace_requires_exactly_one_occurrence(editor):
    with pytest.raises(CallError, match="2 times, in lines 2, 4"):
        run(editor, "str_replace pkg/a.py two ==> 2")
    with pytest.raises(CallError, match="does not occur"):
        run(editor, "str_replace pkg/a.py four ==> 4")


def test_create_writes_new_file_and_undo_removes_it(editor):
    run(editor, "create new/b.py x = 1\\n")
    assert (editor.folder / "new/b.py").read_text() == "x = 1\n"
    with pytest.raises(CallError, match="exists"):
        run(editor, "create pkg/a.py x")
    run(editor, "undo_edit new/b.py")
    assert not (editor.folder / "new/b.py").exists()


@pytest.mark.parametrize(
    "line",
    [
        "view out", "view out/secret", "view file", "create out/new.py x", "create file x", "str_replace file mine ==> yours",
        "str_replace out/secret mine ==> yours", "insert file 0 x", "create pkg/deep/new.py x", "view pipe", "view pkg/deep",
    ],
)  # fmt: skip
def test_editor_does_not_follow_links_out_of_the_repository(editor, tmp_path_factory, line):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret").write_text("mine")
    os.symlink(outside, editor.folder / "out")
    os.symlink(outside / "secret", editor.folder / "file")
    os.symlink(outside, editor.folder / "pkg" / "deep")
    os.mkfifo(editor.folder / "pipe")
    with pytest.raises(CallError):
        run(editor, line)
    assert (outside / "secret").read_text() == "mine" and os.listdir(outside) == ["secret"]


@pytest.mark.parametrize("line", ["view a\0b", "create a\0b x", "insert a.py ² x", f"insert a.py {'9' * 5000} x",
                                  f"view a.py 1 {'9' * 5000}"])  # fmt: skip
def test_unusual_parameters_are_errors_of_the_call(editor, line):
    run(editor, "create a.py one")
    with pytest.raises(CallError):
        run(editor, line)


def test_shorten_lines_cuts_long_output():
    text = "\n".join(str(n) for n in range(200))
    lines = shorten_lines(text).split("\n")
    assert len(lines) == 81 and lines[39:42] == ["39", "<120 lines left out>", "160"]
    assert shorten_lines("a\nb") == "a\nb"
    assert len(shorten_lines("x" * 50_000)) < 10_100


def test_view_clips_a_long_file(editor):
    (editor.folder / "long.py").write_text("x" * 50_000)
    assert len(run(editor, "view long.py")) < 10_200


def test_normalize_replaces_nondeterministic_output(tmp_path):
    text = f"{tmp_path}/a.py <X object at 0x7f00aa11bb22> in 1.23s at 2026-11-18 07:00:01 /tmp/pytest-of-agent/pytest-3/x"
    assert normalize(text, tmp_path) == "/testbed/a.py <X object at 0x0> in 0.00s at 2000-01-01 00:00:00 /tmp/tmp0/x"


def test_read_line_rejects_calls_with_missing_arguments():
    assert write_line(Call("str_replace_editor", {"command": "view", "path": "/testbed"})) == "view ."
    with pytest.raises(CallError):
        read_line("view")
    with pytest.raises(CallError):
        read_line("bash  ")


LINES = "def area(a, b):\n    return a - a\n\n\ndef double(a):\n    return a - a\n"


def test_str_replace_can_be_limited_to_one_line(tmp_path):
    (tmp_path / "a.py").write_text(LINES)
    editor = Editor(tmp_path)
    with pytest.raises(CallError, match=r"occurs 2 times, in lines 2, 6, in /testbed/a\.py"):
        editor.run(read_line("str_replace a.py a - a ==> a * b"))
    output = editor.run(read_line("str_replace a.py:2 a - a ==> a * b"))
    assert output.startswith("Edited /testbed/a.py, lines 1 to 6 of 6 now:") and "     2\t    return a * b" in output
    assert (tmp_path / "a.py").read_text() == LINES.replace("a - a", "a * b", 1)
    for wrong, reason in {
        "str_replace a.py:3 a ==> b": "does not occur in line 3 of /testbed/a.py",
        "str_replace a.py:6 a ==> b": "occurs 2 times, in lines 6, 6, in line 6",
        "str_replace a.py:99 a ==> b": "does not occur in line 99",
    }.items():
        with pytest.raises(CallError, match=reason):
            editor.run(read_line(wrong))
    undone = editor.run(read_line("undo_edit a.py"))
    assert undone.startswith("Undid the last edit of /testbed/a.py, lines 1 to 6 of 6 now:") and "return a - a" in undone
    assert shown_lines(undone)[1][2] == "    return a - a" and (tmp_path / "a.py").read_text() == LINES


def test_line_edit_round_trips_in_every_format():
    action = "str_replace pkg/a.py:12 x < y ==> x <= y"
    assert write_line(read_line(action)) == action
    for form in (FunctionTags(), ToolCalls(), Lines()):
        assert form.parse(form.write(action)).action == action


def test_past_calls_keep_integer_arguments_as_integers():
    form = ToolCalls()
    for action, argument in {
        "view a.py 3 -1": ("view_range", [3, -1]),
        "insert a.py 3 x": ("insert_line", 3),
        "insert a.py 003 x": ("insert_line", "003"),
        "str_replace a.py 1 ==> 2": ("old_str", "1"),
    }.items():
        call = form.message(action).call
        assert call is not None and call.arguments[argument[0]] == argument[1]
        assert form.parse(call.text()).action == action


@pytest.mark.parametrize("template", sorted(REAL))
def test_calls_are_parsed_back_from_a_real_chat_template(template):
    """The check that a run with `--style tools` makes at startup."""
    context = History(ENVIRONMENT.wordings["full"], 2, False, "tools", True)
    check_chat_support(context, TextCodec(talking_tokenizer(REAL[template]), 8192))
