"""Errors of test clusters and their providers.

EvenkeelError
└── ClusterError               a program failed, a wait timed out or something is missing
    ├── UnavailableError       this machine cannot run such a cluster; the message says what to install
    └── UnsupportedError       this provider cannot do that, usually a fault; another provider can
"""

from __future__ import annotations

from evenkeel.errors import EvenkeelError

__all__ = ["ClusterError", "UnavailableError", "UnsupportedError"]


class ClusterError(EvenkeelError):
    """Base class of cluster errors."""


class UnavailableError(ClusterError):
    """This machine cannot run such a cluster."""


class UnsupportedError(ClusterError):
    """This provider cannot do that."""
