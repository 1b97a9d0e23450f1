"""One definition of a quantile for whatever is reported side by side: simulated and live runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def quantile(values: Sequence[float], q: float) -> float | None:
    """Linear-interpolated quantile, `None` of nothing."""
    return float(np.quantile(values, q)) if values else None
