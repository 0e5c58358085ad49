"""Connections to public addresses only: a name is resolved, checked and pinned to its address."""

from __future__ import annotations

import ipaddress
import socket
import ssl
from collections.abc import Collection
from functools import cache
from typing import Any

import httpx

from fieldcraft.tools.threads import run_in_thread

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # RFC 6052: the last 32 bits are an IPv4 address
_UNICAST = ipaddress.IPv6Network("2000::/3")  # all addresses allocated for the public internet
# Networks that `ipaddress` does not know, or only in newer versions of Python.
_SPECIAL_NETWORKS = tuple(
    map(
        ipaddress.ip_network,
        (
            "192.0.0.0/24",  # RFC 6890: protocols
            "192.88.99.0/24",  # RFC 7526: relays to IPv6, withdrawn
            "2001::/23",  # RFC 2928: protocols; Teredo embeds an IPv4 address
            "3fff::/20",  # RFC 9637: documentation
        ),
    )
)


@cache
def make_ssl_context() -> ssl.SSLContext:
    """Return the shared TLS context; loading it for each client would take longer than a
    request."""
    return httpx.create_ssl_context(trust_env=False)


class NonPublicAddressError(httpx.RequestError):
    """A host has an address that is not public."""


def is_public(address: str) -> bool:
    """Return whether an address belongs to the public internet.

    Private, loopback, link-local, multicast, reserved and unspecified addresses are not public, nor
    are IPv6 addresses that embed such an IPv4 address. Raises ValueError for an invalid address.
    """
    ip = ipaddress.ip_address(address)
    if isinstance(ip, ipaddress.IPv6Address):
        embedded_ip = ip.ipv4_mapped or ip.sixtofour
        if ip in _NAT64:
            embedded_ip = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if embedded_ip is not None:
            return is_public(str(embedded_ip))
        if ip not in _UNICAST:
            return False
    is_special = (
        ip.is_multicast or ip.is_reserved or any(ip in network for network in _SPECIAL_NETWORKS)
    )
    return ip.is_global and not is_special


def is_allowed(url: httpx.URL, allowed_hosts: Collection[str]) -> bool:
    """Return whether a host is allowed by name, regardless of its addresses. `allowed_hosts` has
    `HOST` or `HOST:PORT`."""
    return url.host in allowed_hosts or f"{url.host}:{_get_port(url)}" in allowed_hosts


class PinnedTransport(httpx.AsyncBaseTransport):
    """Transport that connects only to addresses that it has resolved and checked itself.

    The owner of a name can change its address between a check and the connection (DNS rebinding).
    So the connection is made to the checked address; the name stays in the header `host`, and the
    certificate is verified for the name. Each connection serves one request: a pooled connection
    would be reused by address, regardless of the name for which its certificate was verified.
    """

    def __init__(self, allowed_hosts: Collection[str] = ()) -> None:
        """Create a transport. `allowed_hosts` may have any address, see `is_allowed`."""
        self._allowed_hosts = allowed_hosts
        self._inner = httpx.AsyncHTTPTransport(
            trust_env=False,
            verify=make_ssl_context(),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request. Raises NonPublicAddressError, httpx.ConnectError if a name has no
        address, and other errors of httpx."""
        addresses = await _resolve(request)
        if not is_allowed(request.url, self._allowed_hosts):
            for address in addresses:
                if not is_public(address):
                    raise NonPublicAddressError(f"{request.url.host} has the address {address}")
        *others, last = addresses
        for address in others:
            try:
                return await self._send(request, address)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                continue  # the next address of the same host may respond
        return await self._send(request, last)

    async def _send(self, request: httpx.Request, address: str) -> httpx.Response:
        pinned = httpx.Request(
            request.method,
            request.url.copy_with(host=address),
            headers=request.headers,  # `host` is still the name
            stream=request.stream,
            extensions={**request.extensions, "sni_hostname": request.url.host},
        )
        return await self._inner.handle_async_request(pinned)

    async def aclose(self) -> None:
        await self._inner.aclose()


def _get_port(url: httpx.URL) -> int:
    return url.port or (443 if url.scheme == "https" else 80)


async def _resolve(request: httpx.Request) -> list[str]:
    """Resolve the addresses of a host, without duplicates, in the order of the resolver."""
    host, port = request.url.host, _get_port(request.url)

    def look_up() -> list[tuple[Any, ...]]:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)

    try:
        found = await run_in_thread(look_up)
    except (OSError, UnicodeError) as error:
        raise httpx.ConnectError("the name has no address", request=request) from error
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))
