"""`POST /set_internal_state`: what of a running server can be changed, as SGLang 0.5.17 and 0.5.23 take it.

    {"server_args": {"dspark_force_budget_frac": 0.25}} ──▶ [true]        one verdict for each data-parallel rank

All of a request is applied or none of it. The verify budget needs a DSPARK server and lies in (0, 1]. A real one takes
every such value, and one without a cost table of steps takes it and goes on verifying everything. The emulator knows
the budgets that the arm's profile has: others it refuses, since it could not say what they cost. On a DSPARK arm
without live settings the budget changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from selector.emulator.engine import EmulatedEngine
from selector.emulator.refusals import Refusal
from selector.files.arm import VERIFY_BUDGET


def read_internal_state(body: Mapping[str, object]) -> dict[str, float]:
    """The values that a request asks for. Raises `Refusal` for a body that is none."""
    wanted = body.get("server_args")
    if not isinstance(wanted, Mapping):
        raise Refusal.of_schema("dict_type", ("body", "server_args"), "Input should be a valid dictionary", wanted)
    for name, value in wanted.items():
        if not isinstance(value, (int, float)):  # null too: a budget cannot be taken back over HTTP
            where = ("body", "server_args", str(name))
            raise Refusal.of_schema("float_type", where, "Input should be a valid number", value)
    return {str(name): float(value) for name, value in wanted.items()}


def set_internal_state(engine: EmulatedEngine, algorithm: str, wanted: Mapping[str, float]) -> bool:
    """Changes what is wanted of a server that runs `algorithm`; whether it did."""
    if any(name != VERIFY_BUDGET or algorithm.upper() != "DSPARK" or not 0.0 < wanted[name] <= 1.0 for name in wanted):
        return False
    if not wanted or not engine.spec.settings:
        return True
    setting = engine.spec.setting(wanted)
    if setting is None:
        return False
    engine.change_setting(setting)
    return True
