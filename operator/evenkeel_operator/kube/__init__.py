"""The API server, as far as the operator needs it.

kinds    what each kind of object is called in addresses
client   requests, one by one, and what can go wrong with them
apply    objects brought to what is wanted, and nothing sent where they are already
lease    one leader among the operator's replicas
"""
