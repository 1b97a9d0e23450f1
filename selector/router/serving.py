"""What serves at present. A reload puts other parts here; a request keeps those it began with."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import FastAPI

from selector.router.admission import Admission
from selector.router.relay import Relay


@dataclass(slots=True, kw_only=True)
class Serving:
    """The parts that client connections ask for, each time anew."""

    admission: Admission
    relay: Relay
    control: FastAPI
    """On the port of the requests."""
    private: FastAPI
    """On the control port, where there is one."""
