"""The few calls that measuring needs of a SGLang server: a closed batch, its load counters, an abort."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from selector.errors import UpstreamError

_FIRST_TOKEN_ID = 1000
"""Random prompts avoid the lowest ids, where special tokens often are."""
_ACCEPTED_KEYS = ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num")
"""Names that releases of SGLang gave the count of accepted drafts, the newest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A closed batch that was answered."""

    start_s: float
    end_s: float
    completion_tokens: tuple[int, ...]
    verify_counts: tuple[int | None, ...]
    """Verify steps of each request (`spec_verify_ct`); `None` where the server did not say."""

    @property
    def duration_s(self) -> float:
        """From sending the batch to its whole answer."""
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatAnswer:
    """An answer to one chat request, as its server counted it; counts are `None` where it did not say."""

    prompt_tokens: int
    completion_tokens: int
    verify_passes: int | None
    accepted_drafts: int | None
    accepted_histogram: tuple[int, ...] | None
    """Verify passes by the number of drafts they accepted, from 0 on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTotals:
    """Running totals over all decode steps of a server (`decode_moments` of /v1/loads), read at `at_s`.

    The server publishes them every 15 steps or so: a difference of two readings is true in itself, but the steps it
    counts lie up to so many steps before the times of reading.
    """

    at_s: float
    running: int
    steps: float = 0.0
    request_steps: float = 0.0
    step_s: float = 0.0
    tokens: float = 0.0
    prefill_s: float = 0.0
    """From the launch of each prefill pass to its result; 0 where the server does not say."""
    prefill_tokens: float = 0.0
    kv_capacity_tokens: int | None = None
    """Tokens that the KV cache holds; `None` where the server does not say."""


class SglangClient:
    """Talks to one server. Every failure is an `UpstreamError`; `clock` stamps the times."""

    def __init__(self, session: aiohttp.ClientSession, url: str, clock: Callable[[], float]) -> None:
        self._session = session
        self.url = url
        self._clock = clock

    async def healthy(self) -> bool:
        """Whether the server can generate. Takes a second: it generates a token to know."""
        try:
            async with self._session.get(f"{self.url}/health") as answer:
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def generate(self, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> Generation:
        """Submits all prompts in one request and waits for all answers; none stops early."""
        body = orjson.dumps(
            {
                "input_ids": prompts,
                "sampling_params": {"max_new_tokens": max_new_tokens, "ignore_eos": True, "temperature": 0},
            }
        )
        start_s = self._clock()
        raw = await self._call("POST", "/generate", body)
        end_s = self._clock()
        answers = _parsed(raw, "/generate")
        if not isinstance(answers, list) or len(answers) != len(prompts):
            raise UpstreamError(f"/generate answered {raw[:200]!r} to {len(prompts)} prompts")
        infos = [answer["meta_info"] for answer in answers]
        return Generation(
            start_s=start_s,
            end_s=end_s,
            completion_tokens=tuple(info["completion_tokens"] for info in infos),
            verify_counts=tuple(info.get("spec_verify_ct") for info in infos),
        )

    async def chat(self, fields: Mapping[str, Any]) -> ChatAnswer | str:
        """One chat request, not streamed; what the server says when it refuses it (400)."""
        body = orjson.dumps({"model": "default", **fields, "return_meta_info": True})
        status, raw = await self._exchange("POST", "/v1/chat/completions", body)
        if status == 400:
            return raw[:300].decode(errors="replace")
        if status != 200:
            raise UpstreamError(f"/v1/chat/completions answered {status}: {raw[:300].decode(errors='replace')}")
        answer = _parsed(raw, "/v1/chat/completions")
        info = answer["choices"][0].get("meta_info") or {}
        histogram = info.get("spec_correct_drafts_histogram")
        accepted = (info.get(key) for key in _ACCEPTED_KEYS)
        return ChatAnswer(
            prompt_tokens=answer["usage"]["prompt_tokens"],
            completion_tokens=answer["usage"]["completion_tokens"],
            verify_passes=info.get("spec_verify_ct"),
            accepted_drafts=next((count for count in accepted if count is not None), None),
            accepted_histogram=None if histogram is None else tuple(histogram),
        )

    async def step_totals(self) -> StepTotals:
        """Load counters now. Raises `UpstreamError` for a server of several data-parallel ranks."""
        loads = _parsed(await self._call("GET", "/v1/loads?include=core"), "/v1/loads")["loads"]
        if len(loads) != 1:
            raise UpstreamError(f"/v1/loads lists {len(loads)} ranks; a closed batch needs a server with one")
        load = loads[0]
        steps, request_steps, step_us, _, _, tokens = load.get("decode_moments") or [0.0] * 6
        return StepTotals(
            at_s=self._clock(),
            running=load["num_running_reqs"] + load["num_waiting_reqs"],
            steps=steps,
            request_steps=request_steps,
            step_s=step_us / 1e6,
            tokens=tokens,
            prefill_s=load.get("total_prefill_busy_us", 0) / 1e6,
            prefill_tokens=load.get("total_prefill_uncached_tokens", 0),
            kv_capacity_tokens=load.get("max_total_num_tokens"),
        )

    async def set_internal_state(self, name: str, value: float) -> None:
        """Turns a knob of the running server. Raises `UpstreamError` when it refuses."""
        path = "/set_internal_state"
        verdicts = _parsed(await self._call("POST", path, orjson.dumps({"server_args": {name: value}})), path)
        if verdicts != [True]:  # one for each data-parallel rank
            raise UpstreamError(f"the server refuses {name} = {value:g} ({verdicts!r}); is the arm launched for it?")

    async def freeze_gc(self) -> bool:
        """Keeps what a warm server's processes have made out of Python's garbage collection; whether the server can.

        Else they stand still for half a second whenever all of it is looked through. SGLang advises the call.
        """
        try:
            status, _ = await self._exchange("POST", "/freeze_gc", None)
        except UpstreamError:  # if it is gone, whoever asks next finds out
            return False
        return status == 200

    async def abort_all(self) -> None:
        """Ends every running request; each is answered with what it has."""
        await self._call("POST", "/abort_request", orjson.dumps({"rid": "", "abort_all": True}))

    async def engine(self) -> str:
        """`sglang <version>`, as far as the server tells."""
        for path in ("/server_info", "/get_server_info"):
            try:
                info: Mapping[str, Any] = _parsed(await self._call("GET", path), path)
            except UpstreamError:
                continue
            return f"sglang {info.get('version', 'of unknown version')}"
        return "sglang of unknown version"

    async def _call(self, method: str, path: str, body: bytes | None = None) -> bytes:
        status, raw = await self._exchange(method, path, body)
        if status != 200:
            raise UpstreamError(f"{path} answered {status}: {raw[:300].decode(errors='replace')}")
        return raw

    async def _exchange(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        headers = {"content-type": "application/json"} if body is not None else None
        try:
            async with self._session.request(method, self.url + path, data=body, headers=headers) as answer:
                return answer.status, await answer.read()
        except (aiohttp.ClientError, TimeoutError) as failed:
            raise UpstreamError(f"{path} failed ({failed or type(failed).__name__})") from None


def open_session() -> aiohttp.ClientSession:
    """A session for one server: no proxy from the environment, and no bound on how long a batch may take."""
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None, connect=5.0), trust_env=False)


def random_prompts(seed: str, count: int, tokens: int, vocab_size: int) -> list[list[int]]:
    """`count` prompts of random token ids; equal seeds give equal prompts."""
    draw = random.Random(seed)
    return [draw.choices(range(min(_FIRST_TOKEN_ID, vocab_size // 2), vocab_size), k=tokens) for _ in range(count)]


def _parsed(raw: bytes, path: str) -> Any:
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        raise UpstreamError(f"{path} answered no JSON: {raw[:200]!r}") from None
