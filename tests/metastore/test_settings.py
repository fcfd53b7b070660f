"""Settings that cannot work are refused before anything is tried."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evenkeel.errors import InvalidInputError
from evenkeel.metastore.etcd_settings import EtcdSettings


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"endpoints": ()}, "endpoints: none given"),
        ({"endpoints": ("127.0.0.1:2379",)}, "'127.0.0.1:2379': not of the form"),
        ({"endpoints": ("http://etcd",)}, "'http://etcd': not of the form"),
        ({"endpoints": ("ftp://etcd:2379",)}, "'ftp://etcd:2379': not of the form"),
        ({"cert": Path("c")}, "cert and key belong together"),
        ({"user": "keel"}, "user and password belong together"),
    ],
)
def test_unusable_settings(changes: dict[str, Any], complaint: str) -> None:
    """The error names the setting and what would be right."""
    with pytest.raises(InvalidInputError, match=complaint):
        EtcdSettings(**changes)


def test_password_is_not_shown() -> None:
    """Settings may be logged."""
    assert "secret" not in repr(EtcdSettings(user="keel", password="secret"))


def test_ipv6_endpoint() -> None:
    """An address in brackets is an address."""
    assert EtcdSettings(endpoints=("https://[::1]:2379",)).endpoints == ("https://[::1]:2379",)
