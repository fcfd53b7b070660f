"""How much may be under way at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

__all__ = ["CreditQueue"]

Item = TypeVar("Item")


class CreditQueue(Generic[Item]):
    """First in, first out, and no more bytes unanswered than the receiver gave credit for.

    An item that exceeds the credit by itself goes when nothing else is unanswered, or it would never go.
    """

    def __init__(self, credit: int = 0) -> None:
        self._credit = credit
        self._waiting: deque[tuple[Item, int]] = deque()
        self._waiting_bytes = 0
        self._unanswered = 0

    @property
    def bytes(self) -> int:
        """Waiting or unanswered."""
        return self._waiting_bytes + self._unanswered

    def add(self, item: Item, size: int) -> None:
        """Let an item wait for its turn."""
        self._waiting.append((item, size))
        self._waiting_bytes += size

    def ready(self) -> Iterator[Item]:
        """Take out the items whose turn it is."""
        while self._waiting:
            item, size = self._waiting[0]
            if self._unanswered and self._unanswered + size > self._credit:
                return
            self._waiting.popleft()
            self._waiting_bytes -= size
            self._unanswered += size
            yield item

    def answered(self, size: int) -> None:
        """Give back the credit that an item took."""
        self._unanswered -= size

    def drop(self) -> list[Item]:
        """Take out everything that still waits."""
        return self.drop_if(lambda _: True)

    def drop_if(self, unwanted: Callable[[Item], bool]) -> list[Item]:
        """Take out what still waits and is not wanted any more."""
        dropped = [item for item, _ in self._waiting if unwanted(item)]
        if dropped:
            self._waiting = deque(waiting for waiting in self._waiting if not unwanted(waiting[0]))
            self._waiting_bytes = sum(size for _, size in self._waiting)
        return dropped
