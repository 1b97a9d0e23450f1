"""Settings that every test shares."""

from __future__ import annotations

from hypothesis import settings

# The same examples on every run and every machine; no deadline, since a busy machine is no failure. To look for new
# counterexamples: scripts/test --hypothesis-profile=explore
settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("explore", derandomize=False, deadline=None, max_examples=2000)
settings.load_profile("ci")
