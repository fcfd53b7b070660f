"""Resources as users write them in YAML, and the immutable views the hot paths work on."""
