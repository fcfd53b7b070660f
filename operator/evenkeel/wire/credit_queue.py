"""A queue that limits how many bytes may be unanswered."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

__all__ = ["CreditQueue"]

Item = TypeVar("Item")


class CreditQueue(Generic[Item]):
    """A FIFO queue whose unanswered bytes stay within the receiver's credit.

    An item that is larger than the credit is sent when nothing else is unanswered; otherwise it would never be sent.
    """

    def __init__(self, credit: int = 0) -> None:
        self._credit = credit
        self._waiting: deque[tuple[Item, int]] = deque()
        self._waiting_bytes = 0
        self._unanswered = 0

    @property
    def bytes(self) -> int:
        """Bytes that wait or are unanswered."""
        return self._waiting_bytes + self._unanswered

    def add(self, item: Item, size: int) -> None:
        """Append an item."""
        self._waiting.append((item, size))
        self._waiting_bytes += size

    def ready(self) -> Iterator[Item]:
        """Remove and yield the items that the credit allows to send."""
        while self._waiting:
            item, size = self._waiting[0]
            if self._unanswered and self._unanswered + size > self._credit:
                return
            self._waiting.popleft()
            self._waiting_bytes -= size
            self._unanswered += size
            yield item

    def answered(self, size: int) -> None:
        """Return the credit of an answered item."""
        self._unanswered -= size

    def drop(self) -> list[Item]:
        """Remove and return all waiting items."""
        return self.drop_if(lambda _: True)

    def drop_if(self, matches: Callable[[Item], bool]) -> list[Item]:
        """Remove and return the waiting items that match."""
        dropped = [item for item, _ in self._waiting if matches(item)]
        if dropped:
            self._waiting = deque(waiting for waiting in self._waiting if not matches(waiting[0]))
            self._waiting_bytes = sum(size for _, size in self._waiting)
        return dropped
