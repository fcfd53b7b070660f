"""Who trusts whom: the seed, the authorities, the certificates."""
