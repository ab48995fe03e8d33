"""Credits of parties in weighted tokens, by which they take turns: the counters of DLPM, in virtual time.

The rule is that of "Locality-aware Fair Scheduling in LLM Serving" (Cao et al., arXiv 2501.14312): a party
with credit may go, what is computed for it is taken from its credit, and when no party that wants more has
any, a new round gives each party a quantum, times its weight. Tokens that the prefix cache has cost nothing,
since nothing computes them.

**Bound.** Let two parties f and g want more during a whole interval, and let `S` be what a party received in
it, divided by its weight. A credit, divided by the weight, is at most a quantum `Q`. A party without credit
gets nothing new, but its sequences that run go on, so its credit may fall to `-U`, where `U` is what they may
still be given. Each round gives both parties the same, so `S_f - S_g` is the difference of their credits at
the beginning less that at the end:

    |S_f - S_g| <= 2 (U + Q)

This is the bound of the paper's theorem for backlogged clients. Here `U` is the prompts of one step, which
parties without credit get if nothing else fills it, and the decodes that running sequences have left (in the
paper `w_e L_input + w_q M`), and when another group is lost what its sequences had computed there: they go on
here whatever credit there is.

**Light parties.** One that did not use up its credit in the last round, and has enough for all its prompts,
asks for less than its share. Its prompts go before those of others and before their decodes, so that it waits
little longer than alone (as in DRR+, Shreedhar and Varghese, 1995).

A party that comes gets one round's credit and no more; one that left owes what it owed for as long as others
go without, and nothing after the next round that makes it up.
"""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass

MAX_LEFT = 1024  # parties that left and owe something


@dataclass(slots=True)
class _Account:
    weight: float
    credit: float
    charged: float = 0.0
    light: bool = True
    present: int = 0


class Deficits:
    """The credits of the parties that are present, and of those that left and owe something.

    Args:
        quantum: Weighted tokens that a party of weight 1 gets in a round.
    """

    def __init__(self, quantum: float) -> None:
        self.quantum = quantum
        self._accounts: dict[str, _Account] = {}
        self._num_present = 0

    @property
    def num_present(self) -> int:
        """Parties that have a sequence."""
        return self._num_present

    def enter(self, party: str, weight: float) -> None:
        """Counts a sequence of a party; the newest weight of a party counts."""
        account = self._accounts.get(party)
        if account is None:
            account = self._accounts[party] = _Account(weight, self.quantum * weight)
        account.weight = weight
        account.credit = min(account.credit, self.quantum * weight)
        if not account.present:
            self._num_present += 1
            if self._num_present == 2:
                self._settle(party)  # the one that was alone owes it nothing
        account.present += 1

    def leave(self, party: str) -> None:
        """Counts a sequence of a party that has ended."""
        account = self._accounts[party]
        account.present -= 1
        if account.present:
            return
        self._num_present -= 1
        if account.credit >= 0 or len(self._accounts) - self._num_present > MAX_LEFT:
            del self._accounts[party]

    def credit(self, party: str) -> float:
        """Returns the credit of a party that is present, in tokens of weight 1; it has some above 0."""
        account = self._accounts[party]
        return account.credit / account.weight

    def spare(self, party: str) -> float:
        """Returns the credit of a party that is present; 0 if it used up that of the last round."""
        account = self._accounts[party]
        return account.credit if account.light else 0.0

    def weight(self, party: str) -> float:
        """Returns the weight of a party that is present."""
        return self._accounts[party].weight

    def charged(self, party: str) -> float:
        """Returns what was computed for a party since it came, while there were several."""
        return self._accounts[party].charged

    def charge(self, party: str, cost: float) -> None:
        """Takes what was computed for a party that is present from its credit."""
        account = self._accounts[party]
        account.credit -= cost
        account.charged += cost

    def refill(self, wanting: Collection[str]) -> None:
        """Begins as many rounds as it takes until a party that wants more has credit.

        If no party wants more than it gets, none owes another anything.
        """
        if not wanting:
            self._settle()
            return
        quantum = self.quantum
        rounds = math.inf
        for party in wanting:
            account = self._accounts[party]
            if account.credit > 0:
                return
            rounds = min(rounds, math.floor(-account.credit / (quantum * account.weight)) + 1.0)
        paid: list[str] = []
        for party, account in self._accounts.items():
            most = quantum * account.weight
            account.light = account.credit > 0
            account.credit = min(most, account.credit + rounds * most)
            if not account.present and account.credit >= 0:
                paid.append(party)
        for party in paid:
            del self._accounts[party]

    def shares(self) -> list[float]:
        """Returns what the parties that are present were charged since they came, the most first."""
        return sorted((one.charged for one in self._accounts.values() if one.present), reverse=True)

    def check_invariants(self, present: Iterable[str]) -> None:
        """Raises `AssertionError` unless the counts are those of the parties of all sequences."""
        counts = dict.fromkeys(self._accounts, 0)
        for party in present:
            counts[party] = counts.get(party, 0) + 1
        if counts != {party: one.present for party, one in self._accounts.items()}:
            raise AssertionError(f"the sequences of parties are counted wrong: {counts}")
        if self._num_present != sum([one.present > 0 for one in self._accounts.values()]):
            raise AssertionError("the parties that are present are counted wrong")
        for party, one in self._accounts.items():
            if one.credit > self.quantum * one.weight or (not one.present and one.credit >= 0):
                raise AssertionError(f"{party!r} has {one.credit} tokens of credit")

    def _settle(self, coming: str = "") -> None:
        """Gives all parties that are present the credit of those that come, and forgets the others."""
        for party, account in list(self._accounts.items()):
            account.light = account.light if coming else account.credit > 0
            account.credit = self.quantum * account.weight
            if not account.present and party != coming:
                del self._accounts[party]
