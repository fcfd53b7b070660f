"""The API server of Kubernetes: for the operator, and for people at a terminal.

kinds     what each kind of object is called in addresses
client    requests, one by one, and what can go wrong with them
access    which API server, as whom and in which namespace, as kubectl finds it
forward   local ports that lead to a pod's, through the API server
"""
