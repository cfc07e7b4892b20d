"""Pauses at a place of the test's choosing, instead of by a signal."""

from __future__ import annotations

from collections.abc import Callable

from fedcore.server.pause import Pauses, Wish


class PauseWhen(Pauses):
    """Wants to stop (or to save) wherever `condition` holds; it is asked before each step."""

    def __init__(self, condition: Callable[[], bool], wanted: Wish = Wish.STOP) -> None:
        super().__init__()
        self.condition, self._wanted = condition, wanted

    def wish(self) -> Wish:
        return self._wanted if self.condition() else Wish.GO_ON
