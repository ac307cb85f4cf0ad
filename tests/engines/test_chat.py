"""Models behind an endpoint, against a real HTTP server on this machine."""

from __future__ import annotations

import sys
import threading
import time
from itertools import count, pairwise

import numpy as np
import pytest
from chat_server import says, serving

from tacit.core.errors import TacitError
from tacit.core.protocols import Request, Sampling
from tacit.core.types import Completion
from tacit.engines.endpoint import PATIENCE, BrokenAnswer, ChatClient, ChatPolicy, EndpointScheduler, cut
from tacit.evaluation.evaluate import SingleAgent, play_panel
from tacit.evaluation.panels import Panel, Rules
from tacit.evaluation.scores import score_panel
from tacit.prompts.history import History
from tacit.rollout.episodes import EpisodePlan, rollout
from tacit.rollout.worlds import InProcessPool
from tacit.worlds import get_environment
from tacit.worlds.countdown.world import solve

HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    """Shorter pauses between retries."""
    monkeypatch.setattr("tacit.engines.endpoint.PAUSE_S", 0.05)


def client(server, **more) -> ChatClient:
    return ChatClient(server.url, "some-model", **more)


def requests(policy, *texts: str) -> list[Request]:
    return [Request(policy.encode_prompt(text), seed=i) for i, text in enumerate(texts)]


def test_request_carries_all_settings_and_the_answer_is_parsed(monkeypatch):
    monkeypatch.setenv("MY_KEY", "secret")
    with serving(lambda body: (200, says("hi", 12, 5, "length"))) as server:
        answer = client(server, key_variable="MY_KEY").complete(HELLO, seed=3 + (1 << 40), temperature=0.5)
    assert (answer.text, answer.finished, answer.prompt_tokens, answer.completion_tokens) == ("hi", False, 12, 5)
    (request,) = server.requests
    assert request["path"] == "/v1/chat/completions" and request["messages"] == HELLO and request["model"] == "some-model"
    assert request["seed"] == 3 and request["temperature"] == 0.5 and server.keys == ["Bearer secret"]


def test_no_authorization_header_without_a_key(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with serving(lambda body: (200, says("hi"))) as server:
        ChatClient(f"{server.url}/chat/completions", "m").complete(HELLO)
    assert server.keys == [None] and server.requests[0]["path"] == "/v1/chat/completions"


@pytest.mark.parametrize(
    "reply",
    [
        (200, b"<html>sorry</html>"),
        (200, {}),
        (200, {"choices": []}),
        (200, says(None)),
        (200, [1]),
        (400, {"error": "too long"}),
    ],
)
def test_unusable_answers_are_errors_without_a_retry(reply):
    with serving(lambda body: reply) as server, pytest.raises(BrokenAnswer):
        client(server).complete(HELLO)
    assert len(server.requests) == 1


def test_refused_prompt_reports_the_servers_message():
    message = "maximum context length is 4096 tokens"
    with serving(lambda body: (400, {"error": {"message": message}})) as server, pytest.raises(BrokenAnswer, match=message):
        client(server).complete(HELLO)


@pytest.mark.parametrize("trouble", [(429, {}), (500, {}), (503, b"busy"), (0, b"")])
def test_transient_errors_are_retried_with_growing_pauses(trouble):
    times: list[float] = []

    def reply(body):
        times.append(time.monotonic())
        return trouble if len(times) < 4 else (200, says("at last"))

    with serving(reply) as server:
        assert client(server).complete(HELLO).text == "at last"
    pauses = [after - before for before, after in pairwise(times)]
    assert len(times) == 4 and all(pause >= 0.05 * 2**attempt for attempt, pause in enumerate(pauses))


def test_retry_after_header_is_respected():
    number, began = count(), time.monotonic()
    late = (429, {}, {"Retry-After": "0.6"})
    with serving(lambda body: late if next(number) < 1 else (200, says("hi"))) as server:
        client(server).complete(HELLO)
    assert time.monotonic() - began >= 0.6


def answering_at_first(reply):
    """The first request is answered, the others as `reply` says."""
    number = count()
    return lambda body: (200, says("hi")) if next(number) == 0 else reply(body)


def hanging(release):
    def hang(body):
        release.wait(5)
        return 200, says("too late")

    return hang


def test_timeout_after_a_first_answer_is_retried_and_reported():
    release = threading.Event()
    with serving(answering_at_first(hanging(release))) as server:
        one = client(server, timeout_s=0.2, retries=1)
        one.complete(HELLO)
        with pytest.raises(BrokenAnswer, match=r"no answer within 0\.2 s"):
            one.complete(HELLO)
        assert one.trouble == "no answer within 0.2 s; retrying after 0.05 s, 1 of 1 times"
        release.set()
    assert len(server.requests) == 3


def test_server_that_never_answered_gets_one_request():
    release, began = threading.Event(), time.monotonic()
    with serving(hanging(release)) as server:
        with pytest.raises(TacitError, match=r"has never answered: no answer within 0\.1 s; .* use a longer --timeout"):
            client(server, timeout_s=0.1).complete(HELLO)
        release.set()
    assert len(server.requests) == 1 and time.monotonic() - began < 15


def dripping(pause_s: float):
    for _ in range(400):
        yield b" "
        time.sleep(pause_s)


@pytest.mark.parametrize("pause_s", [0.05, 1.0], ids=["drips", "stalls"])
def test_slow_answer_body_times_out(pause_s):
    began = time.monotonic()
    with serving(lambda body: (200, dripping(pause_s))) as server:
        with pytest.raises(TacitError, match=r"has never answered: no answer within 0\.3 s; .* use a longer --timeout"):
            client(server, timeout_s=0.3).complete(HELLO)
        assert time.monotonic() - began < 15 and len(server.requests) == 1


def test_truncated_answer_is_retried():
    number = count()
    with serving(lambda body: (200, iter([b'{"choices": ['])) if next(number) == 0 else (200, says("whole"))) as server:
        assert client(server).complete(HELLO).text == "whole"
    assert len(server.requests) == 2


def test_failing_first_request_is_given_up_after_three_retries():
    seen = []
    with serving(lambda body: (seen.append(one.trouble), (500, {"error": {"message": "out of memory"}}))[1]) as server:
        one = client(server)
        with pytest.raises(TacitError, match=r"has never answered: 500 out of memory; the first request failed 4 times"):
            one.complete(HELLO)
    assert seen == ["", *(f"500 out of memory; retrying after {0.05 * 2 ** (n - 1):g} s, {n} of 3 times" for n in (1, 2, 3))]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(("asks_for", "pauses"), [("20", [0.5]), ("0.2", [0.2, 0.2, 0.1]), ("0.01", [0.01] * 6)])
def test_retry_after_is_capped_before_the_first_answer(monkeypatch, asks_for, pauses):
    monkeypatch.setattr("tacit.engines.endpoint.FIRST_WAIT_S", 0.5)
    seen, began = [], time.monotonic()
    loading = 503, {"error": {"message": "loading"}}, {"Retry-After": asks_for}
    with serving(lambda body: (seen.append(one.trouble), loading)[1]) as server:
        one = client(server)
        with pytest.raises(TacitError, match=rf"never answered: 503 loading; .* and it asks to wait {asks_for} s"):
            one.complete(HELLO)
    messages = [f"503 loading; retrying after {s:g} s, {n} of {len(pauses)} times" for n, s in enumerate(pauses, 1)]
    assert seen == ["", *messages] and sum(pauses) <= time.monotonic() - began < 15


def test_retry_after_is_not_capped_after_the_first_answer(monkeypatch):
    monkeypatch.setattr("tacit.engines.endpoint.FIRST_WAIT_S", 0.1)
    number = count()
    later = (429, {}, {"Retry-After": "0.3"})
    with serving(lambda body: later if next(number) in (1, 2) else (200, says("hi"))) as server:
        one = client(server)
        one.complete(HELLO)
        began = time.monotonic()
        assert one.complete(HELLO).text == "hi"
    assert time.monotonic() - began >= 0.6


@pytest.mark.parametrize("reply", [(200, b"<html>sorry</html>"), (400, {"error": "no such parameter"})])
def test_endpoint_without_any_usable_answer_is_given_up(reply):
    with serving(lambda body: reply) as server:
        one = client(server)
        for _ in range(PATIENCE - 1):
            with pytest.raises(BrokenAnswer):
                one.complete(HELLO)
        with pytest.raises(TacitError, match=f"none of the first {PATIENCE} answers .*(not JSON|no such parameter)"):
            one.complete(HELLO)


def test_refused_prompts_do_not_stop_an_endpoint_that_has_answered():
    with serving(answering_at_first(lambda body: (400, {"error": "too long"}))) as server:
        one = client(server)
        one.complete(HELLO)
        for _ in range(PATIENCE + 1):
            with pytest.raises(BrokenAnswer):
                one.complete(HELLO)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (401, r"refuses the key \(none was sent: \$OPENAI_API_KEY is not set\): 401 who"),
        (404, r"has no such.*\(model 'some-model'\): 404 who"),
    ],
)
def test_permanent_errors_stop_without_a_retry(status, message, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    reply = (status, {"error": {"message": "who are you?"}})
    with serving(lambda body: reply) as server, pytest.raises(TacitError, match=message):
        client(server).complete(HELLO)
    assert len(server.requests) == 1


def test_refused_key_names_its_environment_variable(monkeypatch):
    monkeypatch.setenv("MY_KEY", "wrong")
    refused = pytest.raises(TacitError, match=r"refuses the key \(key from \$MY_KEY\): 401 who")
    with serving(lambda body: (401, {"error": {"message": "who?"}})) as server, refused:
        ChatClient(server.url, "m", "MY_KEY").complete(HELLO)


def test_unreachable_server_is_retried_and_reported():
    with serving(lambda body: (200, says("hi"))) as server:
        url = server.url
    began = time.monotonic()
    with pytest.raises(TacitError, match=r"no server answers at http://127.0.0.1:\d+/v1: .*Is it running"):
        ChatClient(url, "m", retries=2).complete(HELLO)
    assert time.monotonic() - began >= 0.05 + 0.1, "it may still be starting: three requests"


def test_server_that_fails_many_requests_in_a_row_is_given_up():
    with serving(answering_at_first(lambda body: (500, {"error": "out of memory"}))) as server:
        one = client(server, retries=0)
        one.complete(HELLO)
        for _ in range(PATIENCE - 1):
            with pytest.raises(BrokenAnswer):
                one.complete(HELLO)
        with pytest.raises(TacitError, match=f"failed {PATIENCE} requests in a row.*out of memory"):
            one.complete(HELLO)


@pytest.mark.parametrize(
    ("url", "model", "message"), [("localhost:8000", "m", "must begin with http"), ("http://x", "", "--model")]
)
def test_invalid_url_or_model_name_is_refused(url, model, message):
    with pytest.raises(TacitError, match=message):
        ChatClient(url, model)


@pytest.mark.parametrize("ending", ["", "/", "/v1", "/v1/", "/v1/chat/completions"])
def test_url_suffixes_are_normalized(ending):
    with serving(lambda body: (200, says("hi"))) as server:
        assert ChatClient(server.url.removesuffix("/v1") + ending, "m").complete(HELLO).text == "hi"
    assert server.requests[0]["path"] == "/v1/chat/completions"


def test_missing_openai_package_is_refused_with_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(TacitError, match=r"pip install 'tacit-agents\[endpoints\]'"):
        ChatClient("http://localhost", "m")


def test_policy_samples_in_parallel_and_keeps_the_order():
    barrier = threading.Barrier(4)

    def reply(body):
        barrier.wait(5)  # only passes when four are here at once
        return 200, says(f"re: {body['messages'][0]['content']}")

    with serving(reply) as server:
        policy = ChatPolicy(client(server), concurrency=4)
        sampling = Sampling(temperature=0.3, top_p=0.9, max_tokens=11)
        answers = policy.sample(requests(policy, *"abcdefgh"), sampling)
    assert [a.text for a in answers] == [f"re: {letter}" for letter in "abcdefgh"] and server.busiest == 4
    assert [len(a.tokens) for a in answers] == [3] * 8
    assert {(a["temperature"], a["top_p"], a["max_tokens"]) for a in server.requests} == {(0.3, 0.9, 11)}
    assert not any("top_k" in request or "stop" in request for request in server.requests)
    assert sorted(request["seed"] for request in server.requests) == list(range(8))


def test_unusable_answer_becomes_an_empty_completion():
    number = count()
    with serving(lambda body: (200, says(None)) if next(number) == 1 else (200, says("fine"))) as server:
        policy = ChatPolicy(client(server), concurrency=1)
        answers = [(c.text, c.finish) for c in policy.sample(requests(policy, "a", "b", "c"), Sampling(top_k=5))]
    assert answers == [("fine", "stop"), ("", "unusable"), ("fine", "stop")]
    assert policy.broken == ["the answer's message has no text, no thought and no call"]
    assert server.requests[0]["top_k"] == 5


def test_refused_key_stops_the_whole_batch():
    with serving(lambda body: (401, {"error": "no"})) as server:
        policy = ChatPolicy(client(server), concurrency=2)
        with pytest.raises(TacitError, match="refuses the key"):
            policy.sample(requests(policy, *map(str, range(50))), Sampling())
    assert len(server.requests) < 50


def test_episodes_run_at_their_own_pace_within_the_concurrency_limit():
    """The first task is answered only after all other episodes have finished. In lockstep it would never be."""
    world = get_environment("countdown")
    context = History(world.wording("full"), turns=0, admissible=False, style="bare")
    tasks = world.tasks("train", 4, 0)
    answered, last = count(), threading.Event()

    def reply(body):
        if tasks[0].goal in body["messages"][0]["content"] or str(tasks[0].data["target"]) in body["messages"][0]["content"]:
            assert last.wait(20)
        elif next(answered) == 3 * 3 - 1:
            last.set()
        return 200, says("hm")

    with serving(reply) as server:
        policy = ChatPolicy(client(server), concurrency=2)
        plans = [EpisodePlan(task, seed=i) for i, task in enumerate(tasks)]
        played = rollout(plans, context, InProcessPool(world.make), policy, Sampling(max_tokens=8), 3)
    assert [len(t) for t in played] == [3] * 4 and len(server.requests) == 12 and server.busiest == 2


def test_closing_a_scheduler_does_not_wait_for_a_slow_server():
    stopped = threading.Event()

    def slow(body):
        stopped.wait(20)
        return 200, says("late")

    with serving(slow) as server:
        policy = ChatPolicy(client(server))
        scheduler = policy.open_scheduler(Sampling())
        for seed in range(3):
            scheduler.submit(Request(policy.encode_prompt("a question"), seed))
        began = time.perf_counter()
        scheduler.close()
        waiting = [thread for thread in threading.enumerate() if thread.name == "endpoint"]
        assert time.perf_counter() - began < 10 and waiting and all(thread.daemon for thread in waiting)
        stopped.set()


def test_error_keeps_the_answers_received_before_it():
    def answer(request):
        if request.seed == 2:
            raise TacitError("the key is refused")
        return Completion(np.zeros(1, np.int64), np.zeros(1, np.float32), str(request.seed), "stop")

    scheduler = EndpointScheduler(answer, concurrency=1)
    for seed in range(5):
        scheduler.submit(Request(np.zeros(1, np.int64), seed))
    came: list[int] = []
    with pytest.raises(TacitError, match="refused"):
        while finished := scheduler.wait():
            came += [request_id for request_id, _ in finished]
            time.sleep(0.05)
    assert came[:2] == [0, 1] and 2 not in came


def test_text_is_cut_after_the_first_stop_string():
    assert cut("<action>go</action> and then", ("</action>",)) == "<action>go</action>"
    assert cut("go east\nthen", ("</action>", "\n")) == "go east\n" and cut("go", ("\n",)) == "go" and cut("go", ()) == "go"


def test_text_round_trips_through_tokens():
    policy = ChatPolicy(ChatClient("http://localhost", "m"))
    assert (
        policy.decode(policy.encode_prompt("naïve ≠ 日本")) == "naïve ≠ 日本" and policy.encode_prompt("ab").dtype == np.int64
    )


def test_panel_is_evaluated_over_http():
    """An unusable answer is an invalid action; the episode and the evaluation continue. Token counts come from the server."""
    world = get_environment("countdown")
    panel = Panel.of(world, "test", 6)
    context = History(world.wording("full"), turns=2, admissible=True, style="tags")
    number = count()

    def reply(body):
        if next(number) % 7 == 3:
            return 200, b"not json"
        prompt = body["messages"][0]["content"]
        task = next(
            t for t in panel.tasks if t.goal.rstrip(".").removeprefix("Use ") in prompt or str(t.data["target"]) in prompt
        )
        plan = solve(tuple(task.data["numbers"]), task.data["target"])
        return 200, says(f" \n<think>easy</think><action>{plan[0]}</action> more", prompt_tokens=100, completion_tokens=10)

    with serving(reply) as server:
        policy = ChatPolicy(client(server), concurrency=3)
        rules = Rules(Sampling(max_tokens=64), 5)
        played = play_panel(
            panel, rules, InProcessPool(world.make), SingleAgent(context, policy), settle=policy.settle, batch=4
        )
    score = score_panel(panel, played, rules)
    steps = [step for t in played for step in t.steps]
    assert len(policy.broken) == sum(not step.valid for step in steps) == score.unusable > 0 and score.crashed == 0
    assert {len(s.prompt_tokens) for s in steps if s.valid} == {100} and {
        len(s.completion.tokens) for s in steps if s.valid
    } == {10}
    assert all(s.completion.text.startswith("<think>") and s.completion.text.endswith("</action>") for s in steps if s.valid)
