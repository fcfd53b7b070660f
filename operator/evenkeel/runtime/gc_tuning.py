"""How Python looks for garbage in processes that hold much for long.

Its collector looks at everything there is as soon as a quarter more has come to stay. Ten thousand groups are millions
of objects, and a look at all of them takes about as long as a group waits for its leader. Hardly any of them become
garbage, so all of it is looked at very rarely; what is short-lived, as often as ever.
"""

from __future__ import annotations

import gc

__all__ = ["spare_the_long_lived"]


def spare_the_long_lived() -> None:
    """Collect young garbage in larger helpings, and all of it about never."""
    gc.freeze()
    gc.set_threshold(10_000, 20, 1_000)
