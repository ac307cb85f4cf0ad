import pytest
from tillbook import Account, Book, settle


def test_deposit_and_withdraw():
    account = Account("ann", 100)
    account.deposit(50)
    account.withdraw(120)
    assert account.balance == 30


def test_amounts_must_be_positive():
    account = Account("ann", 100)
    for amount in (0, -5):
        with pytest.raises(ValueError):
            account.deposit(amount)
        with pytest.raises(ValueError):
            account.withdraw(amount)


def test_limit():
    account = Account("ann", 100, limit=50)
    assert account.available() == 150
    account.withdraw(150)
    assert account.balance == -50
    with pytest.raises(ValueError):
        account.withdraw(1)


def test_no_limit():
    account = Account("ann", 100)
    with pytest.raises(ValueError):
        account.withdraw(101)
    account.withdraw(100)
    assert account.available() == 0


def test_history():
    account = Account("ann", 10)
    account.deposit(5, "gift")
    account.withdraw(12, "cup")
    assert account.history() == [(5, 15), (-12, 3)]
    assert account.entries == [(5, "gift"), (-12, "cup")]


@pytest.fixture
def book():
    made = Book()
    made.open("ann", 100)
    made.open("bob", 20, limit=100)
    return made


def test_open_twice(book):
    with pytest.raises(ValueError):
        book.open("ann")
    assert book.open("cy").balance == 0


def test_transfer(book):
    book.transfer("ann", "bob", 60)
    assert book.accounts["ann"].balance == 40
    assert book.accounts["bob"].balance == 80
    assert book.total() == 120
    with pytest.raises(ValueError):
        book.transfer("ann", "ann", 1)


def test_failed_transfer_changes_nothing(book):
    with pytest.raises(ValueError):
        book.transfer("ann", "bob", 101)
    assert book.accounts["ann"].balance == 100
    assert book.accounts["bob"].balance == 20


def test_richest(book):
    assert book.richest() == "ann"
    book.open("abe", 100)
    assert book.richest() == "abe"
    assert Book().richest() is None


def test_overdrawn(book):
    assert book.overdrawn() == []
    book.transfer("bob", "ann", 30)
    assert book.overdrawn() == ["bob"]


def test_settle():
    assert settle({"ann": -30, "bob": 10, "cy": 20}) == [("ann", "cy", 20), ("ann", "bob", 10)]
    assert settle({"ann": 0}) == []
    assert settle({"ann": 5, "bob": -5}) == [("bob", "ann", 5)]


def test_settle_refuses():
    with pytest.raises(ValueError):
        settle({"ann": 1, "bob": 1})
