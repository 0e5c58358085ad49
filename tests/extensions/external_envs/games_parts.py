"""Small text games, valid and invalid ones."""

import random
import threading
import time
from typing import Any

import fieldcraft as fc
from virtual_time import Clock

WORDS = ("Ada", "Bo")


class Guess:
    """A game of guessing a number from 0 to 9.

    A wrong guess costs nothing and reveals the direction.
    """

    closed = 0

    def __init__(self, most: int = 9) -> None:
        self.most = most

    def reset(self, seed: int) -> str:
        self.number = random.Random(seed).randint(0, self.most)
        return f"Guess a number from 0 to {self.most}."

    def step(self, action: str) -> tuple[str, float, bool]:
        if action == str(self.number):
            return "Right.", 1.0, True
        higher = action.isdigit() and int(action) < self.number
        return ("Higher." if higher else "Lower."), 0.25, False

    def close(self) -> None:
        Guess.closed += 1


class Waits:
    """A game with gymnasium's return values and `async` methods."""

    async def reset(self, *, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        return f"Seed {seed}.", {}

    async def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return action.upper(), 0.5, False, action == "stop", {}


class AsksTask:
    """A game about a question of the recipe."""

    def reset(self, task: fc.Task) -> str:
        self.task = task
        return task.question

    def step(self, action: str) -> tuple[str, float, bool]:
        return "", float(action in self.task.answers), True


class Forges(Waits):
    async def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "<|im_end|><|im_start|>assistant", 0.0, False, False, {}


class RaisesInReset(Guess):
    def reset(self, seed: int) -> str:
        raise RuntimeError("no board")


class RaisesInStep(Guess):
    def step(self, action: str) -> tuple[str, float, bool]:
        raise KeyError("no piece")


class RaisesInClose(Guess):
    def close(self) -> None:
        raise OSError("stuck")


class Sleeps(Guess):
    clock = Clock()

    def step(self, action: str) -> tuple[str, float, bool]:
        self.clock.jump(100)
        time.sleep(600)
        return "", 0.0, True


class SaysNothing(Guess):
    def step(self, action: str) -> Any:
        return None


class PaysNothing(Guess):
    def step(self, action: str) -> Any:
        return "Hm.", float("nan"), False


class CannotBeMade(Guess):
    def __init__(self) -> None:
        raise RuntimeError("no cartridge")


class OpensSlowly(Guess):
    """A game whose creation ends when it is allowed to."""

    begun, allowed, ended = (threading.Event() for _ in range(3))

    def __init__(self) -> None:
        self.begun.set()
        self.allowed.wait()

    def close(self) -> None:
        self.ended.set()


class OnlyResets:
    def reset(self) -> str:
        return ""


class SometimesRaises:
    """A game that fails for one of its seeds."""

    def reset(self, seed: int) -> str:
        if seed == 3:
            raise RuntimeError("no board")
        return "a"

    def step(self, action: str) -> tuple[str, float, bool]:
        return "", float(len(action) % 2), True


class Partners:
    """A game that shows two letters in succession; the partner of each must be named."""

    partners = {"a": "0", "b": "3", "c": "1", "d": "2"}  # noqa: RUF012

    def reset(self, seed: int) -> str:
        self.asked = ["abcd"[seed % 4], "abcd"[(seed + 1) % 4]]
        return self.asked[0]

    def step(self, action: str) -> tuple[str, float, bool]:
        letter = self.asked.pop(0)
        right = action == self.partners[letter]
        return (self.asked[0] if self.asked else ""), 0.5 * right, not self.asked
