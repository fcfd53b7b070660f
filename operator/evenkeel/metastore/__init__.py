"""Etcd behind one small Protocol (`api`), an adapter (`etcd`), an in-memory twin (`memory`)."""
