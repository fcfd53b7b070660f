"""Identities: the seed, certificate authorities, certificates and etcd credentials.

Modules:
    authority               certificates and access tokens derived from the seed
    metastore_connections   which etcd a StoreCluster uses, and with which credentials
    seed                    the secret seed, stored in a Secret beside the operator
    store_certificates      where store certificates come from: none, the operator or cert-manager
"""
