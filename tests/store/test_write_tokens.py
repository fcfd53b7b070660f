"""Write tokens: applied once, dropped in order; an uncommitted transaction leaves no trace."""

from __future__ import annotations

import random

from evenkeel_store.engine.log_entries import TOKENS_KEPT
from evenkeel_store.engine.write_tokens import TokenUse, WriteTokens


def test_known_and_forgotten() -> None:
    """A token that is stored, or older than all stored ones, is not new."""
    tokens = WriteTokens(TokenUse("w", number, str(number), number) for number in range(10, 10 + TOKENS_KEPT))
    assert tokens.is_new("v", 1)
    assert not tokens.is_new("w", 10)
    assert not tokens.is_new("w", 9)
    tokens.use(TokenUse("w", 5000, "", 1))
    assert (tokens.result("w", 10), tokens.result("w", 11), tokens.is_new("w", 4000)) == (None, "11", True)


def test_uncommitted_tokens_leave_no_trace() -> None:
    """A token used in a transaction is known to that transaction alone."""
    tokens = WriteTokens([TokenUse("w", 1, "", 5)])
    uncommitted = tokens.begin()
    uncommitted.use(TokenUse("w", 2, "", 6))
    uncommitted.use(TokenUse("x", 1, "", 6))
    assert (uncommitted.is_new("w", 2), uncommitted.is_new("x", 1), uncommitted.is_new("w", 1)) == (False, False, False)
    assert (tokens.is_new("w", 2), tokens.is_new("x", 1), len(tokens)) == (True, True, 1)


def test_stored_tokens_round_trip() -> None:
    """Tokens that are written out and read back give the same answers."""
    rng = random.Random(1)
    tokens = WriteTokens()
    for _ in range(5000):
        writer, sequence = rng.choice("ab"), rng.randrange(3000)
        if tokens.is_new(writer, sequence):
            tokens.use(TokenUse(writer, sequence, rng.choice(["", "no"]), sequence))
    again = WriteTokens(tokens.all())
    for writer in "abc":
        for sequence in range(3000):
            assert again.is_new(writer, sequence) == tokens.is_new(writer, sequence)
            assert again.result(writer, sequence) == tokens.result(writer, sequence)
    assert sorted(again.silent_since(10**9)) == ["a", "b"]
    again.forget(["a", "zzz"])
    assert again.silent_since(10**9) == ["b"]
