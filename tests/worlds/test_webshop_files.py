"""Files of the original WebShop: layouts, and errors about missing or broken data."""

from __future__ import annotations

import json
import time
from random import Random

import pytest
from webshop_data import about, record, write_shop

from tacit.core.errors import TacitError
from tacit.worlds import get_environment
from tacit.worlds.webshop.catalogue import NO_LIMIT, Catalogue, Goal, Instruction, Product
from tacit.worlds.webshop.tasks import load_catalogue

WORLD = get_environment("webshop")


def test_products_are_read_like_the_original(tmp_path):
    people = [{"instruction": "i want a red stool.", "instruction_attributes": ["steel frame"], "instruction_options": ["red"]}]
    reviews = [{"asin": "B01", "average_rating": "4.5", "reviews": [{"title": "Good", "stars": "5", "review": "Firm."}]}]
    odd = record(
        "B02",
        pricing="$9.99$1,020.50$7",
        small_description="One line",
        customization_options={"Fit/Type": [{"value": " A/B "}]},
    )
    shop = load_catalogue(
        str(
            write_shop(
                tmp_path,
                [record("B01"), odd, record("B03", pricing="")],
                {"B01": about("easy assemble", "steel frame")},
                items_human_ins={"B01": people},
                reviews=reviews,
            )
        )
    )
    first, second, third = shop.products
    assert first.options == {"color": ("red", "light blue")} and first.query == "bar stools" and first.price_tag == "$40.0"
    assert first.rating == "4.5" and first.reviews[0].body == "Firm." and first.attributes == ("easy assemble", "steel frame")
    assert second.pricing == (9.99, 1020.5) and second.price_tag == "$9.99 to $1020.5" and 9.99 <= second.price <= 1020.5
    assert second.features == ("One line",) and second.options == {"fit/type": ("a | b",)}
    assert third.price == 100.0 and third.price_tag == "$100.0" and third.rating == "N.A."
    goals = [goal for test in (False, True) for goal in shop.goals(test)]
    assert [goal.options for goal in goals] == [(("color", "red"),), (("color", "light blue"),)]
    assert goals[0].sentence.startswith("Find me easy assemble, steel frame bar stools with color: red, and price lower than ")
    (human_goal,) = [goal for test in (False, True) for goal in shop.goals(test, human=True)]
    assert human_goal.options == (("", "red"),) and human_goal.sentence.startswith("i want a red stool, and price lower than ")
    assert goals[0].limit > 40 and goals[0].limit % 10 == 0 and goals[0].limit != NO_LIMIT


def test_bad_product_is_reported_by_position_and_the_rest_load(tmp_path, caplog):
    broken = record("B03")
    del broken["name"]
    products = [
        record("B01"),
        "no product",
        broken,
        record("B04", pricing="$cheap"),
        record("B01"),
        record("nan"),
        record("B05"),
    ]
    known = {
        "B01": about("steel frame"),
        "B05": {"attributes": [], "instruction": "Find me a stool", "instruction_attributes": []},
    }
    shop = load_catalogue(str(write_shop(tmp_path, products, known)))
    assert [product.id for product in shop.products] == ["B01", "B05"] and shop.left_out == 2
    file = tmp_path / "items_shuffle_1000.json"
    assert shop.failures[0] == f"{file}, product 2: a product is a JSON object, not str."
    assert (
        shop.failures[1] == f"{file}, product 3 (B03): it has no 'name'." and "product 4 (B04): could not" in shop.failures[2]
    )
    assert "B05 has no instruction_attributes" in shop.failures[3] and len(shop.failures) == 4
    assert "product 3 (B03)" in caplog.text and "2 products, 2 left out" in shop.report


def test_missing_or_broken_data_errors_name_the_remedy(tmp_path, monkeypatch):
    monkeypatch.delenv("WEBSHOP_DATA", raising=False)
    with pytest.raises(TacitError, match=r"set WEBSHOP_DATA to the directory with items_shuffle_1000.json"):
        WORLD.tasks("published_test", 1, 0)
    monkeypatch.setenv("WEBSHOP_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(TacitError, match=r"no such file or directory: .*nowhere"):
        WORLD.tasks("published_test", 1, 0)
    monkeypatch.setenv("WEBSHOP_DATA", str(tmp_path))
    with pytest.raises(TacitError, match=r"holds no products: none of items_shuffle_1000.json"):
        WORLD.tasks("published_test", 1, 0)
    (tmp_path / "items_shuffle_1000.json").write_text('[{"asin": "B0', encoding="utf-8")
    with pytest.raises(TacitError, match=r"items_ins_v2_1000.json is missing: .*setup.sh downloads it"):
        WORLD.tasks("published_test", 1, 0)
    (tmp_path / "items_ins_v2_1000.json").write_text("{}", encoding="utf-8")
    with pytest.raises(TacitError, match=r"items_shuffle_1000.json cannot be read as JSON \(truncated"):
        WORLD.tasks("published_test", 1, 0)
    (tmp_path / "items_shuffle_1000.json").write_text("{}", encoding="utf-8")
    with pytest.raises(TacitError, match=r"should be a JSON list, but is a dict"):
        WORLD.tasks("published_test", 1, 0)
    (tmp_path / "items_shuffle_1000.json").write_text("[]", encoding="utf-8")
    with pytest.raises(TacitError, match=r"has no readable product. It is empty"):
        WORLD.tasks("published_test", 1, 0)


def test_large_layout_and_explicit_file_path_are_loaded(tmp_path, monkeypatch):
    (tmp_path / "items_shuffle.json").write_text(json.dumps([record("B01"), record("B02")]), encoding="utf-8")
    (tmp_path / "items_ins_v2.json").write_text(json.dumps({"B01": about("steel frame")}), encoding="utf-8")
    assert len(load_catalogue(str(tmp_path)).synthetic) == 1
    write_shop(tmp_path, [record("B09")], {})
    assert [p.id for p in load_catalogue(str(tmp_path / "items_shuffle.json")).products] == ["B01", "B02"]


def test_request_for_too_many_goals_is_rejected(tmp_path, monkeypatch):
    known = {f"B{n:02}": about(f"attribute {n}") for n in range(40)}
    products = [record(asin, full_description=f"attribute {n}") for n, asin in enumerate(known)]
    monkeypatch.setenv("WEBSHOP_DATA", str(write_shop(tmp_path, products, known)))
    total = sum(len(WORLD.tasks_of(split, 99, 0, ("garden",))) for split in ("published_train", "published_test"))
    assert total == 80
    with pytest.raises(
        TacitError, match=r"99 goals of 'published_train' were requested, but the published shop \(40 products\)"
    ):
        WORLD.tasks("published_train", 99, 0)


def test_goals_sharing_a_sentence_or_product_are_in_one_split():
    """A chain: two products share a sentence, and the second shares another sentence with a third."""
    products = tuple(Product(f"B{n}", "x", "q", "garden", "") for n in range(300))
    pairs = []
    for n in range(0, 300, 3):
        first, second = f"sentence {n}", f"other {n}"
        pairs += [(f"B{n}", first), (f"B{n + 1}", first), (f"B{n + 1}", second), (f"B{n + 2}", second)]
    instructions = [Instruction(product, sentence, ("a",)) for product, sentence in pairs]
    shop = Catalogue("x", products, (), instructions)
    for n in range(0, 300, 3):
        assert len({f"B{m}" in shop.test_products for m in range(n, n + 3)}) == 1
    assert 30 < len(shop.test_products) < 90
    Random(0).shuffle(instructions)
    assert Catalogue("x", products, (), instructions).test_products == shop.test_products, "whatever the order"


def test_human_goals_do_not_change_the_split_of_products():
    products = tuple(Product(f"B{n}", "x", "q", "garden", "") for n in range(300))
    synthetic = [Instruction(f"B{n}", f"find me {n}", ("a",)) for n in range(200)]
    people = [Instruction(f"B{n}", f"a person wants {n // 2}", ("a",)) for n in range(300)]
    alone, both = Catalogue("x", products, synthetic), Catalogue("x", products, synthetic, people)
    decided = {each.product for each in synthetic}
    assert both.test_products & decided == alone.test_products and both.test_products - decided
    sides = [{goal.sentence.partition(", and price")[0] for goal in both.goals(test, human=True)} for test in (False, True)]
    assert all(sides) and not sides[0] & sides[1], "one sentence about two products"


def test_missing_human_instructions_error_names_the_file(tmp_path, monkeypatch):
    monkeypatch.setenv("WEBSHOP_DATA", str(write_shop(tmp_path, [record("B01")], {"B01": about("steel frame")})))
    for request in (lambda: WORLD.tasks("human_test", 1, 0), lambda: WORLD.tasks_of("human_train", 1, 0, ("garden",))):
        with pytest.raises(TacitError, match=r"needs items_human_ins\.json next to the product file.* setup\.sh downloads it"):
            request()


def test_published_splits_share_no_sentences(shared_data):
    shop = load_catalogue(str(shared_data / "webshop"))
    assert len(shop.products) == 394 and shop.failures == () and len(shop.synthetic) == 216
    sides = [
        {goal.sentence for goal in shop.synthetic if (goal.product in shop.test_products) == test} for test in (False, True)
    ]
    assert not sides[0] & sides[1] and all(sides)


@pytest.mark.slow
def test_speed_with_a_thousand_products(shared_data, tmp_path, monkeypatch):
    """Steps per second of the expert's episodes, with every query new: pages, search and parsing."""
    records = json.loads((shared_data / "webshop" / "products_394.json").read_text(encoding="utf-8"))
    known = json.loads((shared_data / "webshop" / "items_ins_v2_1000.json").read_text(encoding="utf-8"))
    products = [{**records[n % 394], "asin": f"X{n:05}"} for n in range(1000)]
    about_them = {f"X{n:05}": known.get(records[n % 394]["asin"], {}) for n in range(1000)}
    monkeypatch.setenv("WEBSHOP_DATA", str(write_shop(tmp_path, products, about_them)))
    tasks = WORLD.tasks("published_train", 150, 0)
    live, steps, spent = WORLD.make(), 0, 0.0
    live.reset(tasks[0])
    live.step("search[anything]")  # the first search builds the index
    for task in tasks:
        hero, observation = WORLD.expert()(task), live.reset(task)
        for _ in range(WORLD.max_steps):
            action = hero.act(observation)
            start = time.process_time()
            transition = live.step(action)
            spent += time.process_time() - start
            observation, steps = transition.observation, steps + 1
            if transition.done:
                break
    assert steps / spent > 2000


def test_experts_win_human_goals(tmp_path, monkeypatch):
    attributes = {"instruction_attributes": ["steel frame"], "instruction_options": ["red"]}
    people = {f"B{n:02}": [{"instruction": f"i want a red stool number {n}.", **attributes}] for n in range(20)}
    shop = write_shop(tmp_path, [record(asin) for asin in people], {}, items_human_ins=people)
    monkeypatch.setenv("WEBSHOP_DATA", str(shop))
    tasks = [task for split in ("human_train", "human_test") for task in WORLD.tasks_of(split, 99, 0, ("garden",))]
    assert len(tasks) == 20 and len({task.split for task in tasks}) == 2
    for task in tasks:
        for expert in ("oracle", "shopper"):
            live, hero = WORLD.make(), WORLD.expert(expert)(task)
            observation, done = live.reset(task), False
            while not done:
                transition = live.step(hero.act(observation))
                observation, done = transition.observation, transition.done
            assert transition.success, (expert, task.goal)


def test_original_splits_use_the_original_goal_order(tmp_path, monkeypatch):
    """The original lists goals by product and option, then shuffles them with seed 233."""
    sizes = {"Color": [{"value": f"tone {n}"} for n in range(40)], "Size": [{"value": f"size {n}"} for n in range(40)]}
    products = [record("B1"), record("B2", customization_options=sizes)]
    monkeypatch.setenv(
        "WEBSHOP_DATA", str(write_shop(tmp_path, products, {"B1": about("steel frame"), "B2": about("easy clean")}))
    )
    plain = [("B1", ("red",)), ("B1", ("light blue",))]
    plain += [("B2", (f"tone {a}", f"size {b}")) for a in range(40) for b in range(40)]
    Random(233).shuffle(plain)
    for split, start, end in (("original_test", 0, 500), ("original_valid", 500, 1500)):
        tasks = WORLD.tasks_of(split, 10_000, 5)
        goals = [Goal.from_data(task.data["goal"]) for task in tasks]
        assert [(goal.product, tuple(value for _, value in goal.options)) for goal in goals] == plain[start:end]
        assert [task.id for task in tasks][:2] == [f"webshop/{split}/{start}", f"webshop/{split}/{start + 1}"]
    rest = WORLD.tasks("original_train", 102, 5)
    assert sorted(int(task.id.split("/")[-1]) for task in rest) == list(range(1500, 1602))
    assert WORLD.tasks("original_train", 102, 6) != rest
    with pytest.raises(TacitError, match="103 goals of 'original_train' were requested"):
        WORLD.tasks("original_train", 103, 5)


def test_original_splits_prefer_human_goals(tmp_path, monkeypatch):
    people = {
        "B1": [{"instruction": "a steel stool.", "instruction_attributes": ["steel frame"], "instruction_options": ["red"]}]
    }
    shop = write_shop(tmp_path, [record("B1")], {"B1": about("steel frame")}, items_human_ins=people)
    monkeypatch.setenv("WEBSHOP_DATA", str(shop))
    (task,) = WORLD.tasks("original_test", 1, 0)
    assert task.goal.startswith("a steel stool, and price lower than")
