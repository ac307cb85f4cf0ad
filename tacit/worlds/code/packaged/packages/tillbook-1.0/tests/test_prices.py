import pytest
from tillbook import Basket, best_discount, price_with_tax, tiered


def test_tax():
    assert price_with_tax(1000, 19) == (1000, 190)
    assert price_with_tax(1190, 19, included=True) == (1000, 190)
    assert price_with_tax(0, 19) == (0, 0)


def test_tiers():
    tiers = [(1, 100), (10, 90), (100, 75)]
    assert tiered(9, tiers) == 900
    assert tiered(10, tiers) == 900
    assert tiered(100, tiers) == 7500
    assert tiered(0, tiers) == 0
    with pytest.raises(ValueError):
        tiered(-1, tiers)


def test_best_discount():
    assert best_discount(1000, ["10%", "250"]) == 750
    assert best_discount(10000, ["10%", "250"]) == 9000
    assert best_discount(100, ["250"]) == 0
    assert best_discount(100, []) == 100


@pytest.fixture
def basket():
    made = Basket()
    made.add("pen", 150, 2)
    made.add("book", 1200)
    return made


def test_basket_adds_up(basket):
    assert basket.items == 3
    assert basket.subtotal == 1500
    basket.add("pen", 150)
    assert basket.items == 4
    assert basket.subtotal == 1650


def test_basket_refuses(basket):
    with pytest.raises(ValueError):
        basket.add("pen", 160)
    with pytest.raises(ValueError):
        basket.add("cup", 300, 0)
    with pytest.raises(ValueError):
        basket.remove("pen", 3)


def test_basket_remove(basket):
    basket.remove("pen")
    assert basket.items == 2
    basket.remove("pen")
    assert "pen" not in basket.lines
    assert basket.subtotal == 1200


def test_total_with_shipping(basket):
    assert basket.total() == 1990
    assert basket.total(["10%"]) == 1840
    assert Basket().total() == 0


def test_total_without_shipping(basket):
    basket.add("lamp", 3500)
    assert basket.total() == 5000
    assert basket.total(["1"]) == 4999 + 490


def test_cheapest_free(basket):
    assert basket.cheapest_free() == 150
    assert basket.cheapest_free(4) == 0
    basket.add("cup", 100, 3)
    assert basket.cheapest_free() == 200
