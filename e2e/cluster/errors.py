"""What goes wrong with a cluster, said to whoever runs it.

EvenkeelError
└── ClusterError               a program failed, a wait was too long, something is missing; the message says which
    ├── UnavailableError       this machine cannot run such a cluster as it is: what it lacks, and how to get it
    └── UnsupportedError       this provider cannot do that, a fault most likely; another one can
"""

from __future__ import annotations

from evenkeel.errors import EvenkeelError

__all__ = ["ClusterError", "UnavailableError", "UnsupportedError"]


class ClusterError(EvenkeelError):
    """Base of the tree above."""


class UnavailableError(ClusterError):
    """This machine cannot run such a cluster as it is."""


class UnsupportedError(ClusterError):
    """This provider cannot do that."""
