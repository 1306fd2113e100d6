"""Which addresses webhooks may go to, in whatever way they are written."""

import ipaddress
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelock.errors import RequestError
from tidelock.triggers.addresses import AddressRefused, check_address, check_url, literal, refusal

pytestmark = pytest.mark.check

REFUSED = {
    "loopback": ["127.0.0.1", "127.255.255.254", "::1", "::ffff:127.0.0.1", "::127.0.0.1", "64:ff9b::127.0.0.1"],
    "private": ["10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "fc00::1", "fdff::1", "fec0::1",
                "fd00:ec2::254", "::ffff:10.0.0.1", "64:ff9b::c0a8:101"],
    "link-local": ["169.254.0.1", "169.254.169.254", "fe80::1", "fe80::1%eth0", "::ffff:169.254.169.254",
                   "64:ff9b::a9fe:a9fe", "2606:4700::1%1"],
    "unspecified or this network": ["0.0.0.0", "0.1.2.3", "::", "::ffff:0.0.0.0"],
    "multicast": ["224.0.0.1", "239.255.255.255", "ff02::1", "ff0e::1", "::ffff:224.0.0.1"],
    "reserved": ["240.0.0.1", "255.255.255.255", "192.0.0.1", "192.88.99.1", "198.18.0.1", "192.0.2.1", "198.51.100.1",
                 "203.0.113.1", "2001:db8::1", "3fff::1", "100::1", "4000::1", "5f00::1", "64:ff9b:1::808:808"],
    "shared": ["100.64.0.1", "100.127.255.255", "100.100.100.200"],
    "compatible": ["::8.8.8.8", "::10.0.0.1"],
    "6to4": ["2002:7f00:1::", "2002:a00:1::1", "2002:c0a8:101::1", "2002:808:808::1"],
    "teredo": ["2001::1", "2001:0:7f00:1:0:0:f5ff:fffe", "2001:0:4136:e378:8000:63bf:3fff:fdd2"],
    "isatap": ["2606:4700::5efe:10.0.0.1", "2606:4700::200:5efe:127.0.0.1"],
    "a cloud's": ["168.63.129.16"],
}  # fmt: skip
PUBLIC = [
    "8.8.8.8", "1.1.1.1", "172.15.255.255", "172.32.0.1", "100.63.255.255", "100.128.0.1", "169.253.255.255",
    "223.255.255.255", "2606:4700::1111", "2a00:1450::1", "::ffff:8.8.8.8", "64:ff9b::808:808",
    "2606:4700::5efe:8.8.8.8",
]  # fmt: skip
#: 127.0.0.1 and 169.254.169.254 in the spellings that resolvers take for addresses
SPELLINGS = [
    "127.1", "127.0.1", "2130706433", "0x7f000001", "0x7F.0.0.1", "0x7f.1", "0177.0.0.1", "017700000001", "0177.1",
    "127.0.0.1.", "127.000.000.001", "0", "0.0", "0x0", "2852039166", "0xa9fea9fe", "169.254.43518",
    "0251.0376.0251.0376",
    "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[0:0:0:0:0:0:0:1]", "[fe80::1%25eth0]", "[fe80::1%eth0]",
    "[64:ff9b::7f00:1]", "localhost", "LOCALHOST", "localhost.", "a.localhost",
]  # fmt: skip


@pytest.mark.parametrize("address", [address for addresses in REFUSED.values() for address in addresses])
def test_what_is_not_on_the_public_internet_is_refused(address: str) -> None:
    with pytest.raises(AddressRefused, match="is refused: it is"):
        check_address(address)


@pytest.mark.parametrize("address", PUBLIC)
def test_what_is_on_the_public_internet_is_allowed(address: str) -> None:
    check_address(address)


@pytest.mark.parametrize("host", SPELLINGS)
def test_a_url_of_an_inner_address_is_reported_at_once_however_it_is_spelled(host: str) -> None:
    with pytest.raises(RequestError, match="its address is refused"):
        check_url(f"http://{host}:8080/hook", allow_private=False)
    assert check_url(f"http://{host}:8080/hook", allow_private=True)


@pytest.mark.parametrize(
    "url",
    ["", "example.com", "ftp://example.com/", "file:///etc/passwd", "http://", "https:///x", "http://:80/",
     "http://user:secret@example.com/", "http://user@example.com/", "http://example.com/#x", "http://exa mple.com/",
     "http://example.com:99999/", "http://example.com:x/", "http://[::1/", "http://example.com\\@10.0.0.1/",
     "http://bücher.example/", "http://example.com/\r\nx: y", "http://example.com/\0", "https://a/" + "x" * 2048],
)  # fmt: skip
def test_a_url_that_is_none_for_webhooks_is_refused(url: str) -> None:
    with pytest.raises(RequestError) as refused:
        check_url(url, allow_private=True)
    assert refused.value.field == "webhook"
    assert "secret" not in refused.value.message


@pytest.mark.parametrize("url", ["https://example.com", "http://example.com:8080/a?b=c%20d", "https://8.8.8.8/x"])
def test_other_urls_are_taken_as_they_are(url: str) -> None:
    assert check_url(url, allow_private=False) == url


@given(st.integers(0, 2**32 - 1))
def test_an_ipv4_address_is_judged_alike_in_all_its_spellings(number: int) -> None:
    address = ipaddress.IPv4Address(number)
    first, second, third, fourth = address.packed
    for host in (
        str(number), hex(number), f"0{number:o}", f"{first}.{number & 0xFFFFFF}", f"{first}.{second}.{number & 0xFFFF}",
        f"0{first:o}.{hex(second)}.{third}.{fourth}", f"{address}.", f"[::ffff:{address}]", f"[64:ff9b::{address}]",
    ):  # fmt: skip
        found = literal(host)
        assert found is not None
        assert refusal(found) == refusal(address)


@given(st.ip_addresses(v=4))
def test_no_ipv4_address_is_allowed_that_python_knows_to_be_private(address: ipaddress.IPv4Address) -> None:
    private = address.is_private or address.is_loopback or address.is_link_local or address.is_multicast
    assert refusal(address) is not None or not (private or address.is_reserved or address.is_unspecified)


@given(st.ip_addresses(v=6))
def test_no_ipv6_address_is_allowed_that_python_knows_to_be_private(address: ipaddress.IPv6Address) -> None:
    private = address.is_private or address.is_loopback or address.is_link_local or address.is_multicast
    # Two prefixes stand for IPv4, and are judged by the address in them.
    leads_to_ipv4 = address.ipv4_mapped or address in ipaddress.IPv6Network("64:ff9b::/96")
    assert leads_to_ipv4 or refusal(address) or not (private or address.is_reserved or address.is_site_local)


def test_a_name_is_not_a_literal() -> None:
    assert [literal(host) for host in ("example.com", "1.2.3.4.example", "0xzz", "256.256.256.256.256", "")] == [
        None
    ] * 5


def test_resolvers_read_spellings_as_we_do() -> None:
    for host in ("127.1", "0x7f.1", "017700000001", "2130706433"):
        (*_, address) = socket.getaddrinfo(host, 80, type=socket.SOCK_STREAM)[0]
        assert address[0] == str(literal(host)) == "127.0.0.1"
