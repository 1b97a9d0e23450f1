"""The dashboard: one page of this package, with everything it needs in it."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.resources import files

_INLINE = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)


def dashboard_page() -> tuple[bytes, dict[str, str]]:
    """The page and its headers.

    The policy lets a browser run nothing but the page's own script and style, by their hashes, and ask nothing of
    anyone but the router: whatever a request, a backend or a policy file is called, it stays text.
    """
    text = files("selector.router").joinpath("dashboard.html").read_text(encoding="utf-8")
    allowed: dict[str, list[str]] = {"script": [], "style": []}
    for kind, content in _INLINE.findall(text):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        allowed[kind].append(f"'sha256-{digest}'")
    rules = [
        "default-src 'none'",
        f"script-src {' '.join(allowed['script'])}",
        f"style-src {' '.join(allowed['style'])}",
        "img-src data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
    return text.encode(), {
        "content-security-policy": "; ".join(rules),
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
    }
