"""The API server, as far as the operator alone needs it; `evenkeel.kube` has what it shares with `kubectl evenkeel`.

apply    objects brought to what is wanted, and nothing sent where they are already
lease    one leader among the operator's replicas
"""
