"""Who decides where replicas go: the four modes, the bundled rebalancers, and users' own classes in a child process.

`runner.rebalance` is the one entrance; `api` is what a class implements. Nothing is imported here, because the child
process that runs a user's class should start fast.
"""
