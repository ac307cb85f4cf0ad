"""WebShop: pages and clicks, splits, experts, search, and arbitrary actions."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.core.errors import TacitError
from tacit.core.types import PLAIN, Completion, Prompt, Step, StopReason, Task, Trajectory
from tacit.worlds import get_environment
from tacit.worlds.webshop.catalogue import Index, round_length
from tacit.worlds.webshop.tasks import generated_catalogue
from tacit.worlds.webshop.world import SEPARATOR, WebShop, detail_page, parse_action, parse_request, read_page

WORLD = get_environment("webshop")
SPLITS = ("train", "test")
TASK = WORLD.tasks("train", 1, 0)[0]


def play(task: Task, expert: str | None = None):
    live, hero = WORLD.make(), WORLD.expert(expert)(task)
    observation, actions = live.reset(task), []
    for _ in range(WORLD.max_steps):
        actions.append(hero.act(observation))
        transition = live.step(actions[-1])
        observation = transition.observation
        if transition.done:
            break
    return transition, actions


def test_winning_episode_page_by_page():
    goal = TASK.data["goal"]
    product = generated_catalogue().by_id[goal["product"]]
    shop = WebShop()
    first = shop.reset(TASK)
    assert first.text == SEPARATOR.join(("WebShop", "Instruction:", TASK.goal, "Search"))
    assert shop.page.has_search_bar and shop.page.clickables == ("search",)

    results = shop.step(f"search[{product.title}]").observation
    parts = results.text.split(SEPARATOR)
    assert parts[:3] == ["Instruction:", TASK.goal, "Back to Search"] and parts[4] == "Next >"
    assert parts[3].startswith("Page 1 (Total results: ") and parts[5:8] == [product.id, product.title, product.price_tag]
    assert results.actions[:3] == ("click[back to search]", "click[next >]", f"click[{product.id.lower()}]")
    assert not shop.page.has_search_bar and len(results.actions) == 12

    item = shop.step(f"click[{product.id}]").observation  # case in brackets does not matter
    options = [part for name, values in product.options.items() for part in (name, *values)]
    end = [
        product.title,
        f"Price: {product.price_tag}",
        f"Rating: {product.rating}",
        "Description",
        "Features",
        "Reviews",
        "Buy Now",
    ]
    assert item.text.split(SEPARATOR)[2:] == ["Back to Search", "< Prev", *options, *end]
    assert item.actions[:6] == tuple(
        f"click[{text}]" for text in ("back to search", "< prev", "description", "features", "reviews", "buy now")
    )
    assert read_page(item).options == product.options

    features = shop.step("click[features]").observation
    assert features.text.split(SEPARATOR)[2:] == ["Back to Search", "< Prev", *product.features]
    name, value = goal["options"][0]
    assert shop.step("click[< prev]").observation == item
    assert shop.step(f"click[{value}]").observation == item and shop.chosen == {name: value}
    shop.step("click[description]")
    assert shop.step("click[buy now]").effective is False, "there is no such button on a page of details"
    shop.step("click[< prev]")
    assert shop.chosen == {name: value}, "reading about it forgets nothing"
    for _, other in goal["options"][1:]:
        shop.step(f"click[{other}]")
    done = shop.step("click[buy now]")
    assert done.done and done.success and done.score == 1.0 and done.observation.text.endswith("1.0")


def test_result_pages_and_back_buttons():
    shop = WebShop()
    shop.reset(TASK)
    first = shop.step("search[waterproof easy clean]").observation
    second = shop.step("click[next >]").observation
    assert "Page 2" in second.text and second.actions[1:3] == ("click[< prev]", "click[next >]")
    assert shop.step("click[< prev]").observation == first
    chosen = first.actions[3]
    shop.step(chosen)
    assert shop.step("click[< prev]").observation == first and shop.chosen == {}
    for _ in range(7):
        last = shop.step("click[next >]").observation
    assert "Page 8 (Total results: 50)" in last.text and read_page(last).offers == ()
    assert shop.step("click[back to search]").observation.text.startswith("WebShop")
    assert shop.step("search[granola]").observation == shop.step("search[GRANOLA]").observation, "from any page"
    assert "Total results: 0" in shop.step("search[qqq zzz]").observation.text


def test_score_and_label_of_wrong_purchases():
    goal = TASK.data["goal"]
    product = generated_catalogue().by_id[goal["product"]]
    parts = len(goal["attributes"]) + len(goal["options"]) + 1

    def buy(product_id: str, *chosen: str):
        shop = WebShop()
        shop.reset(TASK)
        shop.step(f"search[{generated_catalogue().by_id[product_id].title}]")
        for text in (product_id, *chosen, "buy now"):
            transition = shop.step(f"click[{text}]")
        return transition

    unchosen = buy(product.id)
    assert unchosen.done and not unchosen.success and unchosen.label == "wrong_options"
    assert unchosen.score == pytest.approx(1 - len(goal["options"]) / parts)
    values = [value for _, value in goal["options"]]
    alike = [
        p
        for p in generated_catalogue().products
        if p.query == product.query and not set(goal["attributes"]) <= set(p.attributes)
    ]
    assert buy(alike[0].id).label == "wrong_product"
    other = next(p for p in generated_catalogue().products if p.family != product.family)
    strange = buy(other.id)
    assert strange.label == "wrong_type" and strange.score <= 0.5
    assert buy(product.id, *values).score == 1.0


def test_splits_share_no_products_or_goals():
    shop = generated_catalogue()
    sides = [list(shop.goals(test)) for test in (False, True)]
    assert [len(side) for side in sides] == [6940, 1758]
    products, sentences = (
        [{f(goal) for goal in side} for side in sides] for f in (lambda g: g.product, lambda g: parse_request(g.sentence).thing)
    )
    assert not products[0] & products[1] and not sentences[0] & sentences[1]
    assert len({goal.key for side in sides for goal in side}) == sum(map(len, sides))


def test_tasks_stay_in_their_split_and_extend_shorter_lists():
    few, many, other = WORLD.tasks("test", 20, 3), WORLD.tasks("test", 50, 3), WORLD.tasks("test", 1758, 4)
    assert (
        many[:20] == few and {t.id for t in few} <= {t.id for t in other} and [t.id for t in few] != [t.id for t in other[:20]]
    )
    assert not {t.id.rpartition("/")[2] for t in other} & {t.id.rpartition("/")[2] for t in WORLD.tasks("train", 4096, 0)}
    assert {task.family for task in many} == set(WORLD.families)
    assert json.loads(json.dumps(few[0].data)) == few[0].data
    grocery = WORLD.tasks_of("test", 30, 3, ("grocery",))
    assert len(grocery) == 30 and grocery == [t for t in WORLD.tasks("test", 1758, 3) if t.family == "grocery"][:30]
    with pytest.raises(
        TacitError, match=r"2000 goals of 'test' were requested, but the generated shop \(600 products\) has 1758"
    ):
        WORLD.tasks("test", 2000, 0)
    with pytest.raises(TacitError, match="Did you mean 'test'"):
        WORLD.tasks("tset", 1, 0)


def test_one_skill_module_covers_every_family():
    assert WORLD.skill_families == {"shop": WORLD.families}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("split", SPLITS)
def test_shopper_expert_wins_goals_of_both_splits(split):
    """Every third goal of test, and every fifth of as many goals of train."""
    for task in WORLD.tasks(split, 1758, 5)[:: 5 if split == "train" else 3]:
        transition, actions = play(task)
        assert transition.success and transition.score == 1.0, (task.goal, actions)


def test_oracle_wins_in_the_fewest_actions():
    for task in WORLD.tasks("test", 100, 6):
        transition, actions = play(task, "oracle")
        assert transition.success and len(actions) == 3 + len(task.data["goal"]["options"])


@pytest.mark.slow
def test_oracle_wins_all_and_shopper_most_published_goals(shared_data, monkeypatch):
    monkeypatch.setenv("WEBSHOP_DATA", str(shared_data / "webshop"))
    for split in ("published_train", "published_test"):
        tasks = WORLD.tasks(split, 60, 0)
        assert all(play(task, "oracle")[0].success for task in tasks)
        won = sum(play(task)[0].success for task in tasks)
        assert won >= 42, f"{split}: {won} of 60"


@pytest.mark.slow
def test_random_episodes_run_without_exceptions():
    live, rng, ended = WORLD.make(), Random(0), 0
    tasks = WORLD.tasks("train", 200, 8)
    for number in range(1000):
        observation = live.reset(tasks[number % len(tasks)])
        for _ in range(WORLD.max_steps):
            assert observation.actions
            transition = live.step(rng.choice(observation.actions)).in_plain_numbers()
            assert transition.effective and 0.0 <= transition.score <= 1.0
            observation = transition.observation
            if transition.done:
                ended += 1
                break
    assert ended > 100


HOSTILE = [
    "", " ", "[", "]", "[]", "click", "click[", "click]", "click[]", "search[]", "search[ ]", "search[s]", "search[s s]",
    "search", "Search[stool]", "CLICK[buy now]", "click[buy now]", "click[search]", "click[nothing like it]",
    "click[B999999999]", "click[click[b100]]",
    "search[" + "stool " * 50_000 + "]", "x" * 1_000_000, "search[😀 ñandú 椅子]", "click[\x00]", "search[\x00\n\t]",
    "</action><action>click[buy now]", "search[<r>]", "search[<a> waterproof]", "search[<c> fashion]", "search[{{ 7*7 }}]",
    "search[' OR 1=1 --]", "search[[SEP] Instruction: [SEP]]", "buy[b100]", "click[b100] and click[buy now]", "SEARCH[x]",
]  # fmt: skip


@pytest.mark.parametrize("page", ["search", "results", "item", "detail"])
def test_hostile_actions_are_ineffective_on_every_page(page):
    for action in HOSTILE:
        live = WORLD.make()
        live.reset(TASK)
        steps = {"results": 1, "item": 2, "detail": 3}.get(page, 0)
        opened = generated_catalogue().products[0]
        for step in (f"search[{opened.title}]", f"click[{opened.id}]", "click[features]")[:steps]:
            before = live.step(step).observation
        transition = live.step(action)
        bought = page == "item" and action == "click[buy now]"
        assert transition.done == bought
        if parse_action(action)[0] != "search":
            assert bought or transition.effective is False
            assert bought or page == "search" or transition.observation == before


def test_hidden_query_syntax_is_treated_as_words():
    """In the original, `<c> fashion` lists a department and `<a> …` breaks the server."""
    live = WORLD.make()
    live.reset(TASK)
    assert live.step("search[<c> granola]").observation.text.count("Granola") == 10


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.text(max_size=30) | st.sampled_from(["search[lamp]", "click[next >]", "click[b440]", "click[buy now]"]), max_size=8
    )
)
def test_any_action_text_is_handled(actions):
    live = WORLD.make()
    live.reset(TASK)
    for number, action in enumerate(actions, 1):
        transition = live.step(action)
        assert transition.observation.text and 0.0 <= transition.score <= 1.0
        assert transition.done or transition.observation.actions, "there is always something to do"
        assert transition.effective or not transition.done or number == WORLD.max_steps, "what is refused ends nothing"
        if transition.done:
            break


def test_task_of_another_catalogue_is_rejected():
    with pytest.raises(TacitError, match="made for another generated catalogue"):
        WORLD.make().reset(replace(TASK, data={**TASK.data, "digest": "0"}))
    with pytest.raises(TacitError, match="is not a WebShop task"):
        WORLD.make().reset(replace(TASK, data={}))
    with pytest.raises(TacitError, match="call reset"):
        WORLD.make().step("search[x]")


TRACE = """
import hashlib
from tacit.worlds import get_environment
world = get_environment("webshop")
lines = []
for task in world.tasks("test", 12, 2):
    live, hero = world.make(), world.expert()(task)
    observation = live.reset(task)
    for _ in range(15):
        action = hero.act(observation)
        transition = live.step(action)
        observation = transition.observation
        lines.append(f"{task.id} {action} {observation} {transition.score}")
        if transition.done:
            break
print(hashlib.sha256("\\n".join(lines).encode()).hexdigest())
"""


@pytest.mark.slow
def test_episodes_are_identical_across_processes():
    traces = []
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        traces.append(
            subprocess.run([sys.executable, "-c", TRACE], env=environment, capture_output=True, text=True, check=True).stdout
        )
    assert traces[0] == traces[1] and len(traces[0].strip()) == 64


def test_search_stems_words_and_drops_stop_words():
    index = Index(["the women's blouses", "a blouse for women and men", "wooden chairs"], ["a", "b", "c"])
    assert index.words("The Women's BLOUSES, with sleeves") == ["women", "blous", "sleev"]
    assert set(index.find("blouses")) == {0, 1} and index.find("chair") == (2,)
    assert index.find("the with of") == () == index.find("") == Index([], []).find("chair")
    assert Index(["same words", "same words"], ["b", "a"]).find("words") == (1, 0), "equal scores are in the order of the ids"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("12.5 inch x-large a:b u.s.a. foo_bar", ["12.5", "inch", "x", "larg", "a:b", "u.s.a", "foo_bar"]),
        ("1,000 3/4 o'clock dogs’s s _ __x", ["1,000", "3", "4", "o'clock", "dog", "s", "__x"]),
        ("possibly technologies biology assembly", ["possibl", "technolog", "biologi", "assembl"]),
        ("★☆ 👨\u200d💼 ❤️ 椅子 พระองค์", ["★", "👨\u200d💼", "❤️", "椅", "子", "พระองค์"]),
    ],
)
def test_index_words_equal_lucene(text, words):
    """Expected words are those of `pyserini.analysis`."""
    assert Index([], []).words(text) == words


def test_round_length_matches_one_byte_encoding():
    assert round_length(np.array([0, 23, 24, 39, 40, 41, 42, 57, 100, 1000])).tolist() == [
        0, 23, 24, 39, 40, 40, 42, 56, 96, 984,
    ]  # fmt: skip


def test_search_ranking_matches_recorded_lucene_digest():
    """218 queries over the generated catalogue. The digest is of Lucene's hits (pyserini 0.22.1)."""
    shop = generated_catalogue()
    goals = [goal for test in (False, True) for goal in shop.goals(test)]
    found = [" ".join(product.id for product in shop.search(goal.sentence.lower())) for goal in goals[::40]]
    assert hashlib.sha256("\n".join(found).encode()).hexdigest()[:16] == "bc09b50332d0010c"


@pytest.mark.slow
def test_search_ranking_equals_installed_lucene(tmp_path):
    lucene = pytest.importorskip("pyserini.index.lucene", reason="pyserini is not installed", exc_type=Exception)
    search = pytest.importorskip("pyserini.search.lucene", exc_type=Exception)
    shop, writer = generated_catalogue(), lucene.LuceneIndexer(str(tmp_path))
    for product in shop.products:
        writer.add_doc_raw(json.dumps({"id": product.id, "contents": product.search_text.lower()}))
    writer.close()
    searcher = search.LuceneSearcher(str(tmp_path))
    for goal in list(shop.goals(True))[::20]:
        hits = [hit.docid for hit in searcher.search(goal.sentence.lower(), k=50)]
        assert hits == [product.id for product in shop.search(goal.sentence.lower())]


def test_action_parsing_edge_cases_match_the_original():
    assert parse_action("search[ ]") == ("search", " ") and parse_action("search[]") == ("", "")
    assert parse_action(" search[red]") == (" search", "red"), "no action of the world"
    assert parse_action("search[red] now") == ("search", "red") == parse_action("search[red]\nclick[b1]")
    live = WORLD.make()
    live.reset(TASK)
    found = live.step("search[ ]")
    assert found.effective and "Page 1 (Total results: 0)" in found.observation.text
    assert not live.step(" search[olive oil]").effective


def test_empty_feature_renders_an_empty_part():
    product = replace(generated_catalogue().products[0], features=("",), description="")
    assert (
        detail_page("Find it", product, "Features").text
        == "Instruction: [SEP] Find it [SEP] Back to Search [SEP] < Prev [SEP] "
    )
    assert detail_page("Find it", product, "Description").text.endswith("< Prev")


def episode(actions: list[str], stop: StopReason) -> Trajectory:
    live = WORLD.make()
    observation, steps, transition = live.reset(TASK), [], None
    for action in actions:
        transition = live.step(action)
        empty = Completion(np.zeros(1, np.int64), np.zeros(1, np.float32), "", "stop")
        steps.append(
            Step(
                observation, Prompt("", ""), np.zeros(1, np.int64), empty, action, True, transition.effective, transition.label
            )
        )
        observation = transition.observation
    return Trajectory(TASK, tuple(steps), False, 0.0, stop, observation, PLAIN, transition.label if transition else "")


def test_failure_labels_skills_and_places():
    product = generated_catalogue().products[0]
    bought = ["search[backpacks]", "click[next >]", "click[< prev]", f"search[{product.title}]", f"click[{product.id}]"]
    bought += ["click[features]", "click[< prev]", f"click[{product.options['color'][0]}]", "hm", "click[buy now]"]
    lost = episode(bought, StopReason.FAILURE)
    assert WORLD.failure(lost) in ("wrong_type", "wrong_product", "wrong_options", "too_expensive")
    assert WORLD.alphabet(lost) == ("SEARCH", "MORE", "BACK", "SEARCH", "OPEN", "INSPECT", "BACK", "CHOOSE", "BUY")
    assert WORLD.failure(episode(bought[:3], StopReason.STEP_LIMIT)) == "never_opened"
    assert WORLD.failure(episode(bought[:5], StopReason.STEP_LIMIT)) == "timeout"
    assert WORLD.failure(episode(bought[:5], StopReason.PROMPT_TOO_LONG)) == "prompt_too_long"
    assert [WORLD.place(a, s.observation) for a, s in zip(bought[3:6], lost.steps[4:7], strict=True)] == [
        "",
        product.id.lower(),
        "",
    ]


def test_terse_prompts_are_short():
    wording, live = WORLD.wording("terse"), WORLD.make()
    longest = 0
    for task in WORLD.tasks("train", 60, 1):
        hero, observation, done = WORLD.expert()(task), live.reset(task), False
        while not done:
            text = wording.now(1, observation, False)
            longest = max(longest, len(wording.task(task)) + len(text))
            transition = live.step(hero.act(observation))
            observation, done = transition.observation, transition.done
    assert longest < 800
    live.reset(TASK)
    assert wording.task(TASK).count(" / ") == 3 and wording.now(1, live.reset(TASK), False) == "search >"


def test_full_wording_lists_search_like_the_benchmark():
    full = WORLD.wording("full")
    text = full.alone(1, WORLD.make().reset(TASK), True)
    assert text.startswith("Your current observation is: 'Search'.") and "[\n'search[<your query>]',\n]" in text
    assert full.task(TASK).endswith(f"Your task is to: {TASK.goal}.")


def test_questions_ask_about_the_page():
    live, rng = WORLD.make(), Random(0)
    assert WORLD.questions(rng, live.reset(TASK)) == []
    results = live.step("search[lamp]").observation
    (price, cost), (which, answer) = WORLD.questions(rng, results)
    offers = {offer.id: offer for offer in read_page(results).offers}
    assert offers[price.split()[1]].lowest == float(cost) and offers[answer].title.lower() == which.removeprefix("which ")
    item = live.step(results.actions[2]).observation
    ((question, name),) = WORLD.questions(rng, item)
    assert question.removeprefix("what is ") in read_page(item).options[name]


def test_example_texts_cover_actions_and_are_deterministic():
    texts = WORLD.example_texts(0)
    joined = "\n".join(texts)
    assert "click[buy now]" in joined and "to choose: " in joined and "click[24 inch]" in joined
    assert hashlib.sha256(joined.encode()).hexdigest() == hashlib.sha256("\n".join(WORLD.example_texts(0)).encode()).hexdigest()
