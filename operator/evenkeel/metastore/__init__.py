"""The metastore: etcd behind one small Protocol (`api`), its adapter (`etcd`) and an in-memory twin (`memory`)."""
