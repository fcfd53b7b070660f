"""What Evenkeel is measured by: one module per subject, run by `make bench`.

A module here exposes `rows() -> Iterator[Row]` and yields each figure as soon as it has it. Where a target is
relative to something else (etcd's own ceiling, Ignite's rendezvous), the module measures both in the same run,
because machines are noisy and only their ratio travels.
"""
