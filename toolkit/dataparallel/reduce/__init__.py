"""Level 1 of the data path: all-reduce of gradients, within a host first, equal shards between hosts, then back.

    from toolkit.dataparallel.reduce.reducer import Reducer

    reducer = Reducer(native, store, rank, size, timeout_s, host, registry)
    work = reducer.allreduce(tensors, op)                           # a Work, or None: hand it to the native backend
    reducer.by_path()                                             # what ran: {name: (calls, bytes given, bytes sent)}
    reducer.close()                                                 # with the group's end; also called at exit

One Reducer a process group. `native` is the group's gloo backend, `store` its store (the same on all its ranks, used
with a prefix), `host` says which ranks share memory and where others find this host (this_host(environ) makes it),
`registry` is the process's own.

Every rank has to make the same calls in the same order, as with any backend: the first call that level 1 could take
connects the ranks and measures both levels (docs/data-path.md), on all ranks at once. From then on a call is decided by
its size, type and operation alone, so all ranks decide alike. Tensors are reduced in place, in a thread of our own; the
Work's future holds the list of tensors, as gloo's does. A broken or late peer raises from Work.wait() in gloo's words.
"""
