"""Addresses that webhooks may be sent to: those of the public internet, checked when a connection is about to be made.

Anyone who may create a trigger chooses a URL, and this server would call it from inside its network. A name proves
nothing: it may resolve to anything, and to something else the next time. So the very address that is dialled is
checked, after resolution, whatever its spelling (decimal, octal, short, mapped).
"""

from __future__ import annotations

import ipaddress
import socket
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from urllib.parse import SplitResult, urlsplit

from tidelock.errors import RequestError, TidelockError

URL_LENGTH_MAX = 2_048

# The special-purpose registries of IANA, and public addresses on which clouds serve metadata to their machines.
_REFUSED_4 = {
    IPv4Network("0.0.0.0/8"): "this network",
    IPv4Network("10.0.0.0/8"): "private",
    IPv4Network("100.64.0.0/10"): "shared by a carrier's customers",
    IPv4Network("127.0.0.0/8"): "loopback",
    IPv4Network("168.63.129.16/32"): "a cloud's own",
    IPv4Network("169.254.0.0/16"): "link-local",
    IPv4Network("172.16.0.0/12"): "private",
    IPv4Network("192.0.0.0/24"): "reserved",
    IPv4Network("192.0.2.0/24"): "for documentation",
    IPv4Network("192.88.99.0/24"): "reserved",
    IPv4Network("192.168.0.0/16"): "private",
    IPv4Network("198.18.0.0/15"): "for measurements",
    IPv4Network("198.51.100.0/24"): "for documentation",
    IPv4Network("203.0.113.0/24"): "for documentation",
    IPv4Network("224.0.0.0/4"): "multicast",
    IPv4Network("240.0.0.0/4"): "reserved",
}
_PUBLIC_6 = IPv6Network("2000::/3")
_REFUSED_6 = {
    IPv6Network("2001::/23"): "reserved",  # including Teredo, which tunnels to IPv4 addresses
    IPv6Network("2001:db8::/32"): "for documentation",
    IPv6Network("2002::/16"): "6to4",
    IPv6Network("3fff::/20"): "for documentation",
    IPv6Network("::1/128"): "loopback",
    IPv6Network("::/128"): "unspecified",
    IPv6Network("fc00::/7"): "private",
    IPv6Network("fe80::/10"): "link-local",
    IPv6Network("fec0::/10"): "private",
    IPv6Network("ff00::/8"): "multicast",
}
_MAPPED = IPv6Network("::ffff:0:0/96")
_NAT64 = IPv6Network("64:ff9b::/96")
_ISATAP = 0x5EFE


class AddressRefused(TidelockError):
    """A webhook leads to a forbidden address."""

    code = "address_refused"


def refusal(address: IPv4Address | IPv6Address) -> str | None:
    """Why nothing may be sent to an address; None: it is on the public internet."""
    if isinstance(address, IPv4Address):
        return next((why for network, why in _REFUSED_4.items() if address in network), None)
    if address.scope_id is not None:
        return "link-local"
    if address in _MAPPED or address in _NAT64:
        return refusal(_last_four(address))
    if why := next((why for network, why in _REFUSED_6.items() if address in network), None):
        return why
    if address not in _PUBLIC_6:
        return "reserved"
    # An interface of this form tunnels to the IPv4 address in it.
    if (int(address) >> 32) & 0xFDFFFFFF == _ISATAP:
        return refusal(_last_four(address))
    return None


def check_address(host: str) -> None:
    """Raises AddressRefused unless this socket address may be dialled."""
    try:
        why = refusal(ipaddress.ip_address(host))
    except ValueError:
        why = "not an address"
    if why is not None:
        raise AddressRefused(f"the address {host} is refused: it is {why}")


def check_url(url: str, *, allow_private: bool) -> str:
    """The URL, if it looks acceptable. Raises RequestError.

    Only for early feedback: the resolved address is checked at every connection.
    """
    parts = _split(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise _wrong("it must begin with https:// or http:// and name a host")
    if parts.username is not None or parts.password is not None:
        raise _wrong("it must not carry a user or a password; receivers verify the signature")
    if parts.fragment:
        raise _wrong("it must not have a fragment")
    if not allow_private and (why := _literal_refusal(parts.hostname)):
        raise _wrong(f"its address is refused: it is {why}; for development, set `webhook_allow_private`")
    return url


def literal(host: str) -> IPv4Address | IPv6Address | None:
    """The address of a literal host, in any spelling that sockets accept; None: it is a name."""
    host = host.strip("[]").rstrip(".")
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        pass
    try:
        # Accepts 127.1, 0x7f.1, 017700000001 and 2130706433, as any resolver does.
        return IPv4Address(socket.inet_aton(host))
    except (OSError, ValueError):
        return None


def _literal_refusal(host: str) -> str | None:
    name = host.rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return "loopback"
    address = literal(host)
    return None if address is None else refusal(address)


def _split(url: str) -> SplitResult:
    if len(url) > URL_LENGTH_MAX:
        raise _wrong(f"it is longer than {URL_LENGTH_MAX} characters")
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise _wrong("it must be ASCII without spaces; write other characters percent-encoded, and a host as punycode")
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise _wrong(str(error)) from None
    return parts


def _last_four(address: IPv6Address) -> IPv4Address:
    return IPv4Address(int(address) & 0xFFFFFFFF)


def _wrong(why: str) -> RequestError:
    return RequestError(f"this webhook's URL cannot be used: {why}", field="webhook")
