"""Where reading and computing take as long on this GPU: device-copy bandwidth over the rate of a large BF16 product.

    python bench/balance_point.py --out bench/results/balance_point.json

Needs torch with CUDA. Reads NVML for power and clocks where it can; changes nothing on the board. Each rate is the
median over windows of about a second, after a second of warm-up; the copy counts bytes read and written.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

COPY_BYTES = 4 * 1024**3
EDGE = 8192
WINDOWS = 7
WINDOW_S = 1.0


def main() -> None:
    """Measures, prints one JSON document and writes it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="also write the document there")
    args = parser.parse_args()
    import torch  # only GPU hosts have it

    if not torch.cuda.is_available():
        raise SystemExit("balance_point.py: torch sees no CUDA device; run it on a GPU host")
    copies, products = copy_rates(torch), product_rates(torch)
    bytes_per_s, flop_per_s = statistics.median(copies), statistics.median(products)
    document = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "driver": driver(),
        "host": platform.node(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": f"python bench/balance_point.py: {COPY_BYTES} byte copy, {EDGE}^3 bf16 product, {WINDOWS} windows",
        "bytes_per_s": bytes_per_s,
        "bytes_per_s_windows": copies,
        "flop_per_s": flop_per_s,
        "flop_per_s_windows": products,
        "flop_per_byte": flop_per_s / bytes_per_s,
    }
    text = json.dumps(document, indent=1)
    print(text)
    if args.out is not None:
        args.out.write_text(text + "\n", encoding="utf-8")


def copy_rates(torch: Any) -> list[float]:
    """Bytes per second, read and written, of a copy on the device."""
    source = torch.empty(COPY_BYTES // 2, dtype=torch.bfloat16, device="cuda")
    sink = torch.empty_like(source)
    return rates(torch, lambda: sink.copy_(source), 2.0 * COPY_BYTES)


def product_rates(torch: Any) -> list[float]:
    """FLOP per second of a large product."""
    left, right = (torch.randn(EDGE, EDGE, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    product = torch.empty(EDGE, EDGE, dtype=torch.bfloat16, device="cuda")
    return rates(torch, lambda: torch.mm(left, right, out=product), 2.0 * EDGE**3)


def rates(torch: Any, work: Callable[[], object], amount: float) -> list[float]:
    """Amount per second in each window; the first window warms up and is dropped."""
    found = []
    for _ in range(WINDOWS + 1):
        torch.cuda.synchronize()
        began, rounds = time.perf_counter(), 0
        while time.perf_counter() - began < WINDOW_S:
            for _ in range(10):
                work()
            torch.cuda.synchronize()
            rounds += 10
        found.append(rounds * amount / (time.perf_counter() - began))
    return found[1:]


def driver() -> str | None:
    """The driver's version, where NVML tells."""
    try:
        import pynvml
    except ImportError:
        return None
    pynvml.nvmlInit()
    try:
        return str(pynvml.nvmlSystemGetDriverVersion())
    finally:
        pynvml.nvmlShutdown()


if __name__ == "__main__":
    main()
