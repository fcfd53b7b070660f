"""Resources as users write them in YAML, and the immutable views the hot paths work on.

Nothing is imported here: sidecars and rebalancers read `views` alone and should not pay for the rest.
"""
