"""What holds for all tests."""

from __future__ import annotations

from hypothesis import settings

# How long an example takes tells of the machine and of what else runs on it.
settings.register_profile("evenkeel", deadline=None)
settings.load_profile("evenkeel")
