"""What the operator makes of a StoreCluster, as pure functions from resources to objects.

names        what objects are called, their labels and ports
settings     what the operator was told about pods
pod          the pod of one store: the raft sidecar and the store beside it
stores       the StatefulSet, its Services, its budget
secrets      what clients and pods are to know
certificates what cert-manager is asked for
"""
