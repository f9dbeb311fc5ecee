"""Settings of the server."""

import ipaddress
from contextlib import suppress
from dataclasses import dataclass

from runnel.errors import InputError


@dataclass(frozen=True)
class ServerSettings:
    """What the server serves, where, and its limits."""

    model: str = "pocket"  # a name or folder; its name is also the `model` of requests
    dtype: str = "auto"
    index: str | None = None  # the place of an index for /v1/search
    host: str = "127.0.0.1"
    port: int = 8675  # 0: any free one
    api_keys: tuple[str, ...] = ()  # empty: no key is needed
    # names that the Host header may have, besides localhost, `host` and IP addresses
    allowed_hosts: tuple[str, ...] = ()
    # whether a server without a key may listen on an address that other machines reach
    open_bind: bool = False
    max_request_tokens: int = 2_000_000
    max_queue_tokens: int = 16_000_000  # the most tokens of all requests that are queued or running
    # the largest body of a request; `Guard` derives its limit for all bodies from it
    max_body_bytes: int = 64 << 20
    deadline_s: float = 600.0  # the longest time of a request, waiting included
    drain_s: float = 30.0  # after SIGTERM, the longest time to finish running requests

    def __post_init__(self) -> None:
        odd = any(
            not key.isascii() or not key.isprintable() or not key.strip() for key in self.api_keys
        )
        address = address_of(self.host)
        # whether only this machine reaches it
        local = self.host == "localhost" if address is None else address.is_loopback
        if odd or not (self.open_bind or self.api_keys or local):
            problem = (
                "an API key is not printable ASCII text, and HTTP headers hold no other"
                if odd
                else f"{self.host} is reachable from other machines, and no API key is set"
            )
            raise InputError(
                f"{problem}; set RUNNEL_API_KEY or --api-key-file, or use --open to serve everyone"
            )


def address_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the IP address that a host is; None: it is a name."""
    with suppress(ValueError):
        return ipaddress.ip_address(host)
    return None
