"""Every error this package raises on purpose.

    SelectorError
    ├── InputError              what the user gave cannot be used; the command line exits with 2
    │   ├── UsageError          options of a command that do not go together
    │   ├── ProfileError        profiles/*.json
    │   ├── FleetError          the TOML file of fleet, SLO classes and policy
    │   ├── TraceError          request traces and decision logs
    │   ├── StateError          a snapshot of what was learnt, or what another router told
    │   ├── PolicyError         a policy file, its name or its parameters
    │   └── TextModelError      the trained weights of the text types
    ├── DomainError             a question a model cannot answer (batch 0, accept length above the verify width)
    ├── SimulationError         a simulation that cannot go on
    ├── UpstreamError           a backend failed while it was asked for something
    │   └── UnreachedError      it was never asked: there was no connection
    └── MeterError              an energy reading that must not be used

An `InputError` is one line: where, what is wrong with which value, and what to do about it.
"""

from __future__ import annotations


class SelectorError(Exception):
    """Base of every error raised on purpose."""


class InputError(SelectorError):
    """Something the user gave cannot be used.

    `where` names the file and the field (`fleet.toml: backends[2].arm`), `problem` the value and what is wrong with it,
    `remedy` the next step. All three are single-line phrases without a final stop.
    """

    def __init__(self, where: str, problem: str, remedy: str) -> None:
        super().__init__(f"{where}: {problem}; {remedy}")
        self.where = where
        self.problem = problem
        self.remedy = remedy

    def __reduce__(self) -> tuple[type[InputError], tuple[str, str, str]]:
        # An exception is made again of its one message, which is not how this one is made.
        return type(self), (self.where, self.problem, self.remedy)


class UsageError(InputError):
    """Options of a command that do not go together."""


class ProfileError(InputError):
    """A profile that cannot be read or lacks what is asked of it."""


class FleetError(InputError):
    """A fleet file that cannot be read or contradicts itself."""


class TraceError(InputError):
    """A trace or decision log that cannot be read."""


class StateError(InputError):
    """Something learnt, on disk or from another router, that cannot be used. Going on without costs only learning."""


class PolicyError(InputError):
    """A policy that cannot be found, loaded or parameterised, or that broke its contract."""


class TextModelError(InputError):
    """Trained weights that cannot be read, or that another version of the features was trained for."""


class DomainError(SelectorError, ValueError):
    """A model was asked for a point outside its domain of definition (not merely outside the measured grid)."""


class SimulationError(SelectorError):
    """Simulated requests wait for something that will never happen."""


class UpstreamError(SelectorError):
    """A backend refused, closed or answered something that cannot be used."""


class UnreachedError(UpstreamError):
    """There was no connection to a backend: nothing was sent, so asking again repeats nothing."""


class MeterError(SelectorError):
    """An energy window that must be refused; the message gives the reason."""
