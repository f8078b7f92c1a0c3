"""Who is asking: the name of the flow that the turnstile is fair between. Owns the order in which signs are read.

In this order: the header x-soloist-agent; the session (x-session-id, x-claude-code-session-id, the body's
prompt_cache_key); the API key; the client's address. Only the first is shown as it is; the others become digests, so
that no key or address is stored or logged.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

AGENT_HEADER = "x-soloist-agent"
SESSION_HEADERS = ("x-session-id", "x-claude-code-session-id")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Identity:
    """flow is the turnstile's key; label is the agent's own name when it gave one, for traces."""

    flow: str
    label: str | None


def identify(headers: Mapping[str, str], session_key: str | None, address: str | None) -> Identity:
    """The flow of a request."""
    agent = headers.get(AGENT_HEADER, "").strip()
    if agent:
        plain = _PLAIN_NAME.fullmatch(agent) is not None
        return Identity(f"agent:{agent if plain else _digest(agent)}", agent if plain else None)
    sessions = [headers.get(name) for name in SESSION_HEADERS]
    for session in (*sessions, session_key):
        if session:
            return Identity(f"session:{_digest(session)}", None)
    key = headers.get("x-api-key") or headers.get("authorization", "").partition(" ")[2].strip()
    if key:
        return Identity(f"key:{_digest(key)}", None)
    return Identity(f"address:{_digest(address or 'unknown')}", None)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
