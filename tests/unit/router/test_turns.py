"""A burst of requests is spread over turns of the event loop, in order, and nobody is forgotten."""

from __future__ import annotations

import asyncio

from selector.router.turns import Turns


class Counted:
    """Which turn of the loop it is, as callbacks of the loop see it."""

    def __init__(self) -> None:
        self.turn = 0
        self._loop = asyncio.get_running_loop()
        self._next()

    def _next(self) -> None:
        self.turn += 1
        self._handle = self._loop.call_soon(self._next)

    def stop(self) -> None:
        self._handle.cancel()


async def took(turns: Turns, counted: Counted, name: str, log: list[tuple[str, int]]) -> None:
    await turns.mine()
    log.append((name, counted.turn))


async def test_each_of_a_burst_has_a_turn_of_its_own_in_the_order_they_came() -> None:
    turns, counted, log = Turns(), Counted(), []
    async with asyncio.TaskGroup() as group:
        for name in "abcd":
            group.create_task(took(turns, counted, name, log))
    counted.stop()
    assert [name for name, _ in log] == list("abcd")
    taken = [turn for _, turn in log]
    assert len(set(taken)) == 4


async def test_a_turn_that_nobody_has_is_taken_without_waiting() -> None:
    turns = Turns()
    for _ in range(3):
        coroutine = turns.mine()
        try:
            coroutine.send(None)
        except StopIteration:
            pass
        else:
            raise AssertionError("it waited")
        await asyncio.sleep(0)  # the turn ends


async def test_one_that_leaves_the_queue_holds_up_nobody() -> None:
    turns, counted, log = Turns(), Counted(), []
    tasks = [asyncio.create_task(took(turns, counted, name, log)) for name in "abc"]
    await asyncio.sleep(0)  # a has its turn, b and c wait
    tasks[1].cancel()
    await asyncio.wait(tasks, timeout=5)
    counted.stop()
    assert [name for name, _ in log] == ["a", "c"]
    await asyncio.wait_for(turns.mine(), 1)


async def test_one_that_leaves_when_its_turn_has_come_passes_it_on() -> None:
    turns, counted, log = Turns(), Counted(), []
    tasks = [asyncio.create_task(took(turns, counted, name, log)) for name in "abc"]
    await tasks[0]
    tasks[1].cancel()  # told that it is its turn, and not run since
    await asyncio.wait(tasks, timeout=5)
    counted.stop()
    assert [name for name, _ in log] == ["a", "c"]
    await asyncio.wait_for(turns.mine(), 1)
