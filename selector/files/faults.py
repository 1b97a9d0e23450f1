"""The fleet file's table `[faults]`: what `serve` does about backends that fail. Every key has a default.

    [faults]
    retries = 3
    breaker_failures = 5
    outlier_error_frac = 0.3

docs/faults.md says which fault meets which of these.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from selector.files.validation import FileModel

Share = Annotated[float, Field(ge=0, le=1)]


class Faults(FileModel):
    """Retries, circuit breakers and outlier ejection."""

    retries: NonNegativeInt = 3
    """How often a request is sent again, each time to another backend and only before the first byte of an answer."""
    retry_budget_frac: Share = 0.2
    """Retries per request, on average: each request adds so much to what retries are taken from."""
    retry_budget_per_s: NonNegativeFloat = 1.0
    """What time adds to it, so that a router with little to do can retry too."""
    retry_budget_burst: Annotated[float, Field(ge=1)] = 20.0
    """The most that is saved up, and what there is at the start."""
    retry_backoff_ms: NonNegativeFloat = 25.0
    """The first retry waits a random time up to this; each further one up to twice as long."""
    retry_backoff_max_ms: NonNegativeFloat = 1_000.0

    breaker_failures: PositiveInt = 5
    """Requests in a row that fail under a backend until it gets none."""
    breaker_open_s: PositiveFloat = 1.0
    """After about this long one request tries it; twice as long each time that fails."""
    breaker_open_max_s: PositiveFloat = 60.0

    outlier_half_life_s: PositiveFloat = 30.0
    """How fast evidence about a backend fades."""
    outlier_min_requests: PositiveInt = 20
    """Requests of a backend, and of its peers together, below which nothing is concluded."""
    outlier_error_frac: Annotated[float, Field(gt=0, le=1)] = 0.3
    """A backend is ejected when the share of its requests that fail exceeds its peers' by this much."""
    outlier_slowness: Annotated[float, Field(gt=1)] = 3.0
    """Likewise when its steps, against those of its profile, take this many times as long as its peers'."""
    outlier_eject_s: PositiveFloat = 30.0
    """How long it stays out; twice as long each time it is ejected again soon after."""
    outlier_eject_max_s: PositiveFloat = 300.0
    outlier_max_ejected_frac: Share = 0.5
    """The largest share of the backends that would serve which may be out at once; 0 ejects none."""

    @model_validator(mode="after")
    def _limits_are_limits(self) -> Faults:
        for low, high in (
            ("retry_backoff_ms", "retry_backoff_max_ms"),
            ("breaker_open_s", "breaker_open_max_s"),
            ("outlier_eject_s", "outlier_eject_max_s"),
        ):
            if getattr(self, low) > getattr(self, high):
                raise ValueError(f"{high} is {getattr(self, high):g}, below {low} {getattr(self, low):g}")
        return self

    @property
    def summary(self) -> str:
        """What is in force, in one line for people."""
        return (
            f"up to {self.retries} retries from a budget of {self.retry_budget_frac:.0%} of requests; "
            f"a breaker opens after {self.breaker_failures} failures for {self.breaker_open_s:g} to "
            f"{self.breaker_open_max_s:g} s; outliers of +{self.outlier_error_frac:.0%} errors or "
            f"{self.outlier_slowness:g}x the time are ejected, at most {self.outlier_max_ejected_frac:.0%} of the fleet"
        )
