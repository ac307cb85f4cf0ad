"""Accounts, and who owes whom."""


class Account:
    def __init__(self, name, balance=0, limit=0):
        self.name = name
        self.balance = balance
        self.limit = limit
        self.entries = []

    def deposit(self, cents, note=""):
        if cents <= 0:
            raise ValueError("deposit a positive amount")
        self.balance += cents
        self.entries.append((cents, note))

    def withdraw(self, cents, note=""):
        if cents <= 0:
            raise ValueError("withdraw a positive amount")
        if self.balance - cents < -self.limit:
            raise ValueError(f"{self.name} has not enough")
        self.balance -= cents
        self.entries.append((-cents, note))

    def available(self):
        return self.balance + self.limit

    def history(self):
        """(amount, balance after it) of each entry."""
        balance = self.balance - sum(cents for cents, _ in self.entries)
        found = []
        for cents, _ in self.entries:
            balance += cents
            found.append((cents, balance))
        return found


class Book:
    """Accounts by name."""

    def __init__(self):
        self.accounts = {}

    def open(self, name, balance=0, limit=0):
        if name in self.accounts:
            raise ValueError(f"{name} has an account already")
        self.accounts[name] = Account(name, balance, limit)
        return self.accounts[name]

    def transfer(self, giver, taker, cents, note=""):
        if giver == taker:
            raise ValueError("giver and taker are the same")
        source, target = self.accounts[giver], self.accounts[taker]
        source.withdraw(cents, note)
        target.deposit(cents, note)

    def total(self):
        return sum(account.balance for account in self.accounts.values())

    def richest(self):
        """The name with the highest balance; of equals the first by name."""
        if not self.accounts:
            return None
        return min(self.accounts, key=lambda name: (-self.accounts[name].balance, name))

    def overdrawn(self):
        return sorted(name for name, account in self.accounts.items() if account.balance < 0)


def settle(balances):
    """Payments (from, to, cents) that bring all balances to zero: the largest debt pays the largest claim."""
    if sum(balances.values()) != 0:
        raise ValueError("the balances must add up to zero")
    left = dict(balances)
    payments = []
    while any(left.values()):
        debtor = min(left, key=lambda name: (left[name], name))
        creditor = min(left, key=lambda name: (-left[name], name))
        cents = min(-left[debtor], left[creditor])
        payments.append((debtor, creditor, cents))
        left[debtor] += cents
        left[creditor] -= cents
    return payments
