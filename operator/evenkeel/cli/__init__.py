"""The `evenkeel` command."""
