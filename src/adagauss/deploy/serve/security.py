"""Who may ask: the address a request was sent to, the site it comes from, the token it carries.

A page of another site can make a browser send requests to a server on the same machine. Three things keep it out:
browsers say where a request comes from (``Origin``, ``Sec-Fetch-Site``); a name that an attacker points at 127.0.0.1
(DNS rebinding) is not among the hosts; and a token travels in a header, never in a cookie, so a browser does not add it
by itself.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from adagauss.deploy.serve.errors import Refusal
from adagauss.errors import ConfigError

LEAST_TOKEN = 16
PAGE_PATHS = ("/", "/favicon.ico")
OPEN_PATHS = ("/api/health",)
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}
"""Headers of every answer: the page runs its own scripts only, and no other page may frame or read it."""


@dataclass(frozen=True)
class Access:
    """Who may use a server: names it answers to, and the token, if any."""

    token: str | None = field(default=None, repr=False)
    hosts: frozenset[str] = frozenset({"localhost"})
    """Host names beside addresses in numbers; a name that is not here is refused."""

    def check(self, path: str, headers: Mapping[str, str]) -> None:
        """Raise a `Refusal` unless the host and the site of a request are those of this server."""
        host = headers.get("host", "")
        name = host_name(host)
        if name not in self.hosts and not _is_address(name):
            raise Refusal(
                403, f"this server does not answer to the name {name[:100]!r}: add it with hosts=, or use its address"
            )
        if is_page(path):
            return  # a link of another site may open the page; it holds nothing and cannot be framed
        site = headers.get("sec-fetch-site", "none")
        origin = headers.get("origin")
        foreign = origin is not None and _netloc(origin) != host.lower()
        if foreign or site not in ("same-origin", "none"):
            raise Refusal(403, "requests from pages of other sites are refused")

    def knows(self, authorization: str | None) -> bool:
        """Whether this header carries the token; the time it takes does not depend on how much of it is right."""
        if self.token is None:
            return True
        scheme, _, given = (authorization or "").partition(" ")
        right = hmac.compare_digest(_digest(given.strip()), _digest(self.token))
        return right and scheme.lower() == "bearer"


def access_for(host: str, token: str | None, hosts: tuple[str, ...] = ()) -> Access:
    """The access of a server bound to ``host``; without a token only this machine itself may be served."""
    if token is not None and (len(token) < LEAST_TOKEN or not token.isascii() or not token.isprintable()):
        raise ConfigError(f"the token must have at least {LEAST_TOKEN} printable ASCII characters")
    if token is None and not is_loopback(host):
        raise ConfigError(
            f"{host} can be reached from other machines, so a token is required: put one of at least {LEAST_TOKEN} "
            "characters into the environment variable ADAGAUSS_TOKEN (openssl rand -hex 16 makes one), or serve on "
            "127.0.0.1"
        )
    own = {"localhost", host.lower(), *(name.lower() for name in hosts)}
    if token is not None:
        own.add(socket.gethostname().lower())
    return Access(token, frozenset(own))


def is_loopback(host: str) -> bool:
    """Whether all addresses of a host are those of this machine itself.

    >>> is_loopback("127.0.0.1"), is_loopback("0.0.0.0")
    (True, False)
    """
    try:
        found = socket.getaddrinfo(host or "0.0.0.0", None)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"there is no host {host!r} ({error}): use an address of this machine") from None
    return all(ipaddress.ip_address(str(entry[4][0]).partition("%")[0]).is_loopback for entry in found)


def host_name(header: str) -> str:
    """The host in a ``Host`` header, without its port.

    >>> host_name("LocalHost:8000"), host_name("[::1]:8000"), host_name("a.b:evil"), host_name("[::1]evil")
    ('localhost', '::1', '', '')
    """
    try:
        parts = urlsplit(f"//{header}")
        _ = parts.port
    except ValueError:
        return ""
    plain = parts.netloc == header and not parts.username and not parts.path
    name, after = parts.hostname or "", header.rpartition("]")[2]
    return name if plain and (after == header or after.startswith(":") or not after) else ""


def is_page(path: str) -> bool:
    """Whether a path belongs to the page itself: files of this package, the same for everybody."""
    return path in PAGE_PATHS or path.startswith("/static/")


def needs_token(path: str) -> bool:
    """Whether a path is only for those who know the token."""
    return not is_page(path) and path not in OPEN_PATHS


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:  # nothing that a browser would send
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
