"""A pool of fitted clients of ServeGen, from which a day of requests is drawn.

Source: https://github.com/alibaba/ServeGen. A folder holds, per client, `chunk-N-trace.csv` (without a header: window
start s, rate in req/s, coefficient of variation, distribution, shape, scale) and `chunk-N-dataset.json` (window start →
field → histogram of lengths, written as a Python dict), or the same of all clients in `traces.csv`, with the client in
front, and `datasets.jsonl` or `datasets.jsonl.gz`, one `{"client", "dataset"}` a line.

Drawn as ServeGen draws it, at the fitted rates. In a window of a client, ⌈rate × length⌉ gaps from its Gamma or Weibull
distribution are stretched to fill the window; the last arrival is the window's end and falls out. One random number per
request picks both its lengths from their histograms, so long prompts have long answers within a client. A window
without histograms takes those of the last one before it that has them.

Every window of every client has its own random stream: a slice of the day holds what the whole day holds there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
import orjson
from numpy.typing import NDArray

from selector.errors import TraceError
from selector.files.traces.rows import Item, Row, SkippedRow, numbered, opened, seconds, shown
from selector.files.traces.servegen import NO_TOKENS

NAME = "servegen_pool"

_PACKED = ("datasets.jsonl.gz", "datasets.jsonl")
_LENGTHS = ("input_tokens", "output_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    start_s: float
    rate: float
    pattern: str
    """Gamma or Weibull; empty where the client was silent."""
    shape: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Client:
    name: str
    where: str
    windows: tuple[_Window, ...]
    histograms: Mapping[int, Mapping[str, str]]
    """By window start (s) and field, as published; empty ones are left out."""


def drawn(folder: Path, *, from_s: float, to_s: float, seed: int) -> Iterator[Item]:
    """Requests of the windows that overlap the time from `from_s` to `to_s`, by arrival.

    Arrivals are seconds after midnight of the fitted day. Raises `TraceError`.
    """
    clients = list(_packed(folder) if (folder / "traces.csv").is_file() else _chunks(folder))
    if not clients:
        remedy = "name a folder with chunk-N-trace.csv and chunk-N-dataset.json, or traces.csv and datasets.jsonl.gz"
        raise TraceError(str(folder), "is a folder without ServeGen clients", remedy)
    starts = sorted({window.start_s for client in clients for window in client.windows})
    at = {start: [(c, w) for c in clients for w in c.windows if w.start_s == start and w.pattern] for start in starts}
    lengths = _Lengths()
    number = 0
    for place, start_s in enumerate(starts):
        length_s = starts[place + 1] - start_s if place + 1 < len(starts) else _last_length(starts)
        if start_s >= to_s or start_s + length_s <= from_s:
            continue
        parts = []
        for client, window in at[start_s]:
            known = lengths.of(client, window)
            if known is None:
                yield SkippedRow(0, "window of a client without lengths")
            else:
                parts.append(_window(client, window, length_s, known, seed))
        if not parts:
            continue
        arrivals, prompts, outputs = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        order = np.argsort(arrivals, kind="stable")
        columns = (arrivals[order].tolist(), prompts[order].tolist(), outputs[order].tolist())
        for arrival_s, prompt_tokens, output_tokens in zip(*columns, strict=True):
            number += 1
            if prompt_tokens and output_tokens:
                yield Row(number, arrival_s, prompt_tokens, output_tokens)
            else:
                yield SkippedRow(number, NO_TOKENS)


def _last_length(starts: list[float]) -> float:
    return starts[-1] - starts[-2] if len(starts) > 1 else 600.0


_Histogram = tuple[NDArray[np.int64], NDArray[np.float64]]
"""Lengths, and the cumulative share of each."""


def _window(
    client: _Client, window: _Window, length_s: float, lengths: tuple[_Histogram, _Histogram], seed: int
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    stream = f"servegen:{seed}:{client.name}:{window.start_s:g}"
    key = int.from_bytes(blake2b(stream.encode(), digest_size=16).digest(), "big")
    random = np.random.Generator(np.random.Philox(key=key))
    requests = math.ceil(window.rate * length_s)
    gaps = (random.standard_gamma if window.pattern == "Gamma" else random.weibull)(window.shape, requests)
    ends = np.cumsum(gaps)
    arrivals = window.start_s + ends[:-1] * (length_s / ends[-1]) if requests and ends[-1] > 0 else np.empty(0)
    draws = random.random(len(arrivals))
    prompts, outputs = (values[np.searchsorted(shares, draws, side="right")] for values, shares in lengths)
    return arrivals, prompts, outputs


class _Lengths:
    """Histograms of the clients' windows, parsed when first needed: most of a pool's size is in them."""

    def __init__(self) -> None:
        self._parsed: dict[tuple[str, int], tuple[_Histogram, _Histogram]] = {}

    def of(self, client: _Client, window: _Window) -> tuple[_Histogram, _Histogram] | None:
        start = max((start for start in client.histograms if start <= window.start_s), default=None)
        if start is None:
            return None
        key = (client.name, start)
        if key not in self._parsed:
            prompts, outputs = (_histogram(client, start, field) for field in _LENGTHS)
            self._parsed[key] = prompts, outputs
        return self._parsed[key]


def _histogram(client: _Client, start: int, field: str) -> _Histogram:
    text = client.histograms[start].get(field)
    where = f"{client.where}: client {client.name}: window {start}: {field}"
    if text is None:
        raise TraceError(where, "is missing", f"give a language or reasoning pool, which has {' and '.join(_LENGTHS)}")
    try:
        numbers = np.array(text.strip()[1:-1].replace(":", ",").split(","), dtype=np.float64)
        values, shares = numbers[0::2], np.cumsum(numbers[1::2])
        if len(values) != len(shares) or not np.isfinite(numbers).all() or (numbers < 0).any() or shares[-1] <= 0:
            raise ValueError
    except ValueError:
        raise TraceError(where, f"is {shown(text.encode())}, not a histogram", "download the pool again") from None
    return values.astype(np.int64), shares / shares[-1]


def _packed(folder: Path) -> Iterator[_Client]:
    """Clients of a folder with one file of rates and one of lengths."""
    table = folder / "traces.csv"
    windows: dict[str, list[_Window]] = {}
    with opened(table) as file:
        for number, line in numbered(file):
            client, _, rest = line.partition(b",")
            windows.setdefault(client.decode("utf-8", "replace"), []).append(_parsed(rest, f"{table}: line {number}"))
    datasets = next((folder / name for name in _PACKED if (folder / name).is_file()), folder / _PACKED[0])
    with opened(datasets) as file:
        for number, line in numbered(file):
            where = f"{datasets}: line {number}"
            record = _json(line, where)
            name = str(record.get("client"))
            if name not in windows:
                raise TraceError(where, f"is client {name!r}, not in {table.name}", "use files of one pool")
            yield _client(name, where, windows.pop(name), record.get("dataset"))
    if windows:
        raise TraceError(str(datasets), f"lacks client {next(iter(windows))}", "use files of one pool")


def _chunks(folder: Path) -> Iterator[_Client]:
    """Clients of a folder of ServeGen's repository."""
    for table in sorted(folder.glob("chunk-*-trace.csv"), key=lambda path: (len(path.name), path.name)):
        with opened(table) as file:
            windows = [_parsed(line, f"{table}: line {number}") for number, line in numbered(file)]
        datasets = table.with_name(table.name.replace("-trace.csv", "-dataset.json"))
        with opened(datasets) as file:
            yield _client(table.name.split("-")[1], str(datasets), windows, _json(file.read(), str(datasets)))


def _client(name: str, where: str, windows: list[_Window], dataset: object) -> _Client:
    if not isinstance(dataset, dict):
        raise TraceError(where, "has no histograms by window", "download the pool again")
    histograms = {}
    for start, fields in dataset.items():
        if (
            not start.isdigit()
            or not isinstance(fields, dict)
            or any(type(text) is not str for text in fields.values())
        ):
            raise TraceError(f"{where}: window {start}", "is no table of histograms", "download the pool again")
        if all(text.strip() != "{}" for text in fields.values()):
            histograms[int(start)] = fields
    return _Client(name=name, where=where, windows=tuple(windows), histograms=histograms)


def _parsed(line: bytes, where: str) -> _Window:
    fields = line.split(b",")
    try:
        if len(fields) != 6:
            raise ValueError(f"has {len(fields)} columns of a window instead of 6")
        start_s, rate = seconds(fields[0], "window start"), seconds(fields[1], "rate")
        pattern = fields[3].decode("utf-8", "replace").strip()
        if pattern not in ("", "Gamma", "Weibull"):
            raise ValueError(f"distribution is {pattern!r}, neither Gamma nor Weibull")
        shape = seconds(fields[4], "shape") if pattern else 0.0
        if pattern and not shape > 0:
            raise ValueError("shape is 0, not above it")
    except ValueError as problem:
        raise TraceError(where, str(problem), "download the pool again") from None
    return _Window(start_s=start_s, rate=rate, pattern=pattern, shape=shape)


def _json(data: bytes, where: str) -> dict[str, object]:
    try:
        record = orjson.loads(data)
    except orjson.JSONDecodeError as bad:
        raise TraceError(where, f"is not JSON ({bad})", "download the pool again") from None
    if not isinstance(record, dict):
        raise TraceError(where, "is not a JSON object", "download the pool again")
    return record
