"""Level-based reconciliation, pure: from what the metastore says to the next requests towards what the user wants.

A reconciliation is a generator of requests (`requests`); whoever drives it (`evenkeel.driver`) carries them out on a
real metastore or a simulated one. It keeps nothing between runs, so being killed anywhere and run again is the normal
case.
"""
