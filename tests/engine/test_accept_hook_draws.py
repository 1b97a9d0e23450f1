"""What the live benchmark's hook draws, with the torch of the kit's environment: means and survivals as asked for."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

HOME = Path(os.environ.get("SGLANG_CPU_HOME") or Path.home() / ".cache" / "sglang-cpu")
PYTHON = HOME / "venv" / "bin" / "python"
HOOK = Path(__file__).parents[2] / "bench" / "live" / "hook"

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not PYTHON.is_file(), reason=f"no environment with torch in {HOME}: run the kit's install.sh"),
]

SCRIPT = """
import json, sys, torch
sys.path.insert(0, sys.argv[1])
from drafter_selector_accept import BatchLengths
torch.manual_seed(1)
found = {}
for kind, values in (("survival", {"code": 0.8, "*": 0.3}), ("mean", {"code": 2.5, "*": 1.4})):
    batch = BatchLengths(values, survival=kind == "survival")
    batch.begin(["1-code", "2-romansh"])
    for widest in (4, 2, 1):  # the depth changes from step to step
        taken = torch.stack([batch.draw(3, widest, "cpu") for _ in range(8000)]).double()
        found[f"{kind}-{widest}"] = [taken.mean(0).tolist()[:2], taken.min().item(), taken.max().item()]
print(json.dumps(found))
"""


def test_each_draft_survives_by_its_chance_whatever_the_depth() -> None:
    ran = subprocess.run([PYTHON, "-c", SCRIPT, HOOK], capture_output=True, text=True, check=True, timeout=150)
    found = json.loads(ran.stdout.splitlines()[-1])
    wanted = {
        "survival-4": [1 + 0.8 + 0.64 + 0.512, 1 + 0.3 + 0.09 + 0.027],
        "survival-2": [1.8, 1.3],
        "survival-1": [1.0, 1.0],
        "mean-4": [2.5, 1.4],
        "mean-2": [2.0, 1.4],
        "mean-1": [1.0, 1.0],
    }
    for key, means in wanted.items():
        seen, least, most = found[key]
        assert seen == pytest.approx(means, abs=0.05), key
        assert least >= 1 and most <= int(key[-1]), key
