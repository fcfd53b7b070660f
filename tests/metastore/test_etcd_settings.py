"""Validation of settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evenkeel.errors import InvalidInputError
from evenkeel.metastore.etcd_settings import EtcdSettings


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"endpoints": ()}, "endpoints: none given"),
        ({"endpoints": ("127.0.0.1:2379",)}, "got '127.0.0.1:2379'; allowed: http"),
        ({"endpoints": ("http://etcd",)}, "got 'http://etcd'; allowed: http"),
        ({"endpoints": ("ftp://etcd:2379",)}, "got 'ftp://etcd:2379'; allowed: http"),
        ({"cert": Path("c")}, "only one of cert and key is given"),
        ({"user": "keel"}, "only one of user and password is given"),
    ],
)
def test_unusable_settings(changes: dict[str, Any], problem: str) -> None:
    """The error names the setting and the allowed values."""
    with pytest.raises(InvalidInputError, match=problem):
        EtcdSettings(**changes)


def test_password_is_not_shown() -> None:
    """The representation of settings has no password, so that they can be logged."""
    assert "secret" not in repr(EtcdSettings(user="keel", password="secret"))


def test_ipv6_endpoint() -> None:
    """An IPv6 address in brackets is accepted."""
    assert EtcdSettings(endpoints=("https://[::1]:2379",)).endpoints == ("https://[::1]:2379",)
