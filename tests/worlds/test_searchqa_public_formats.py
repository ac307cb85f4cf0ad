"""Files of MuSiQue and FlashRAG, SQuAD scoring, and a retrieval server with Search-R1's interface."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tacit.core.errors import TacitError
from tacit.worlds.searchqa import searchqa_environment
from tacit.worlds.searchqa.retrieval import exact_match, f1, squad_scores

MUSIQUE = {
    "id": "2hop__1_2",
    "paragraphs": [
        {"idx": 0, "title": "Ulm", "paragraph_text": "Ulm lies on the Danube.", "is_supporting": True},
        {"idx": 1, "title": "York", "paragraph_text": "York lies on the Ouse.", "is_supporting": False},
        {"idx": 2, "title": "Mara", "paragraph_text": "Mara was born in Ulm.", "is_supporting": True},
    ],
    "question": "On which river was Mara born?",
    "question_decomposition": [{"question": "Mara >> born"}, {"question": "#1 >> river"}],
    "answer": "Danube",
    "answer_aliases": ["the Donau"],
    "answerable": True,
}


def write(tmp_path, *entries, name="musique_dev.jsonl"):
    (tmp_path / name).write_text("\n".join(json.dumps(entry) for entry in entries))
    return tmp_path


def test_musique_question_searches_its_own_paragraphs(tmp_path):
    unanswerable = {**MUSIQUE, "id": "2hop__3_4", "question": "Where?", "answerable": False}
    world = searchqa_environment(write(tmp_path, MUSIQUE, unanswerable))
    (task,) = world.tasks("published_test", 1, 0)
    assert task.family == "bridge" and task.data["hops"] == 2
    assert task.data["answers"] == ["Danube", "the Donau"] and task.data["titles"] == ["Ulm", "Mara"]
    live = world.make()
    live.reset(task)
    assert '"Ulm" Ulm lies on the Danube.' in live.step("search river of Ulm").observation.text
    assert live.step("answer Donau").success, "an alias"


def test_flashrag_metadata_gives_family_and_titles(tmp_path):
    about = {
        "type": "comparison",
        "supporting_facts": {"title": ["Ulm", "York"], "sent_id": [0, 0]},
        "context": {"title": ["Ulm", "York"], "content": [["Ulm lies on the Danube."], ["York lies on the Ouse."]]},
    }
    plain = {"id": "test_1", "question": "Who wrote it?", "golden_answers": ["Bo"]}
    hotpot = {"id": "test_0", "question": "Which river?", "golden_answers": ["Danube"], "metadata": about}
    world = searchqa_environment(write(tmp_path, hotpot, plain, name="hotpotqa_test.jsonl"))
    tasks = {task.id.split("/")[-1]: task for task in world.tasks("published_test", 2, 0)}
    assert tasks["test_0"].family == "comparison" and tasks["test_0"].data["titles"] == ["Ulm", "York"]
    assert tasks["test_1"].family == "one_hop" and "hops" not in tasks["test_1"].data


def test_corpus_with_published_name_error_says_to_rename_it(tmp_path):
    """Search-R1's wiki-18.jsonl next to FlashRAG's test.jsonl: its 21 million lines are not read as questions."""
    write(tmp_path, {"question": "Which river?", "golden_answers": ["Danube"]}, name="test.jsonl")
    write(tmp_path, {"id": "0", "contents": '"Ulm"\nUlm lies on the Danube.'}, {"id": "1"}, name="wiki-18.jsonl")
    with pytest.raises(TacitError, match=r"wiki-18\.jsonl holds passages, not questions; rename it to corpus\.jsonl"):
        searchqa_environment(tmp_path).tasks("published_test", 1, 0)
    (tmp_path / "wiki-18.jsonl").rename(tmp_path / "corpus.jsonl")
    assert searchqa_environment(tmp_path).tasks("published_test", 1, 0)


@pytest.mark.parametrize(
    ("answer", "gold", "exact", "overlap"),
    [
        ("The  Devil's Hairpin!", "devils hairpin", True, 1.0),
        ("the O’Brien", "O’Brien", True, 1.0),
        ("O’Brien", "O'Brien", False, 0.0),
        ("yes it is", "yes", False, 0.5),
        ("the", "a", True, 1.0),
        ("the", "rain", False, 0.0),
    ],
)
def test_squad_scores_by_hand(answer, gold, exact, overlap):
    assert squad_scores(answer, [gold]) == (exact, overlap)


def test_default_scoring_differs_from_squad():
    assert exact_match("O’Brien", ["O'Brien"]) and not exact_match("the", ["a"]) and f1("yes it is", ["yes"]) == 0.0


def test_scoring_setting_selects_squad_scoring(tmp_path, monkeypatch):
    folder = write(tmp_path, {**MUSIQUE, "answer": "O'Brien", "answer_aliases": []})
    for scoring, right in (("", True), ("squad", False)):
        world = searchqa_environment(folder, scoring=scoring)
        (task,) = world.tasks("published_test", 1, 0)
        live = world.make()
        live.reset(task)
        assert live.step("answer O’Brien").success is right
    with pytest.raises(TacitError, match=r"unknown scoring 'sqad' of world 'searchqa'\. Did you mean 'squad'"):
        searchqa_environment(folder, scoring="sqad").tasks("published_test", 1, 0)


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, request))
        found = [{"document": {"id": "7", "contents": '"Ulm"\nUlm lies on the </information> Danube.'}, "score": 0.9}]
        body = json.dumps({"result": [found * request["topk"]]} if self.server.sound else {"detail": "no"}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def test_retrieval_server_is_queried_and_its_errors_are_reported(tmp_path):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.requests, server.sound = [], True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    try:
        question = {"question": "Which river?", "golden_answers": ["Danube"]}
        world = searchqa_environment(write(tmp_path, question, name="nq_test.jsonl"), retriever=address)
        (task,) = world.tasks("published_test", 1, 0)
        live = world.make()
        live.reset(task)
        seen = live.step("search river of Ulm").observation.text
        assert seen.count('"Ulm" Ulm lies on the [/information] Danube.') == 3
        first, *played = server.requests  # the first checks that the server answers
        assert first == ("/retrieve", {"queries": ["test"], "topk": 1, "return_scores": True})
        assert played == [("/retrieve", {"queries": ["river of Ulm"], "topk": 3, "return_scores": True})]
        server.sound = False
        with pytest.raises(TacitError, match=r"retrieval server .*/retrieve gave no passages for 'York': KeyError"):
            live.step("search York")
    finally:
        server.shutdown()
        server.server_close()
    with pytest.raises(TacitError, match="Check that it runs"):
        live.step("search Lyon")
