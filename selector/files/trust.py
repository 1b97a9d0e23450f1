"""Trust in certificates: what the router, and `check --live`, verify servers of `https://` addresses with."""

from __future__ import annotations

import ssl

from selector.errors import FleetError
from selector.files.fleet import Fleet


def trust(fleet: Fleet, where: str) -> ssl.SSLContext:
    """Verifies certificate and host name, with the authorities of `ca_file` or else the system's.

    Raises `FleetError` for a `ca_file` that cannot be used.
    """
    ca_file = fleet.security.ca_file
    if ca_file is None:
        return ssl.create_default_context()
    place = f"{where}: security.ca_file"
    try:
        return ssl.create_default_context(cafile=ca_file)
    except ssl.SSLError:
        raise FleetError(place, f"{ca_file} holds no certificate", "give it in PEM format") from None
    except OSError as failed:
        raise FleetError(place, f"{ca_file} cannot be read ({failed.strerror})", "check path and permissions") from None


def untrusted(failed: ssl.SSLCertVerificationError) -> str:
    """Why a certificate is refused, and what can be done about it."""
    return f"its certificate is refused ({failed.verify_message}); security.ca_file names whom to trust"
