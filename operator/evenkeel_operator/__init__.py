"""The operator: everything of Evenkeel that is Kubernetes.

Watches and listings feed one cache and say what to look at again; looking is level-based. The tables of each
StoreCluster have the same controller as in local mode (`evenkeel.controller`), behind its `Resources`.

kube         the API server: requests, apply, the Lease
manifests    what is made of a StoreCluster, as pure functions
watches      kopf, in a thread of its own
cache        objects as they were last seen
queue        keys to be looked at again
clusters     StoreClusters: pods, Secrets, their end, a controller for each
client_secrets  client Secrets in other namespaces
volumes      volume claims: whose they are, and when one is deleted
tables       tables, as far as they are not the controller's
resources    the controller's resources, from the cache
statuses     statuses on their way out
conditions   what the operator alone can say in a status
events       what happened, for `kubectl describe`
definitions  whether the CRDs are those that the operator comes with
authority    certificates and tokens that follow from one seed
term         one replica's time as leader
process      the program
"""
