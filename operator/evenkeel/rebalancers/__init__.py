"""Rebalancers: the four modes, the bundled classes, and users' classes in a child process.

Call `rebalancer_runner.rebalance`; implement `rebalancer_api.Rebalancer`. This file imports nothing, so that the child
process that runs a user's class starts fast.

Modules:
    assignment_validator    check an assignment before it is stored
    bundled_rebalancers     the classes `balanced`, `mod` and `pinned`
    rebalancer_api          the interface of a rebalancer
    rebalancer_child        main program of the child process that runs a user's class
    rebalancer_messages     messages between the operator and the child process
    rebalancer_process      run a user's class in a child process with limits
    rebalancer_runner       compute and validate an assignment in the Table's mode
    rendezvous              the class `rendezvous`: highest random weight
    user_choices            the modes SemiAuto and Customized
"""
