"""drafter-selector: which speculative-decoding drafter, if any, should serve each request.

Reading guide
    core/policy.py      the contract: views in, decision out. Read this first.
    core/types.py       what a policy sees (requests, backends) and says (decisions).
    core/cost.py        step time and energy of an arm over batch and context.
    core/tracker.py     folds events into the fleet view; router and simulator share it.
    simulator/server.py the model of one SGLang server; the emulator runs it on a real clock.
    router/relay.py     the same policy in front of live servers.
    cli/                one module a command; the only place that prints or exits.

Words used throughout (target, drafter, arm, backend, step, accept length, TBT) are defined in the README.
"""

__version__ = "0.1.0"
