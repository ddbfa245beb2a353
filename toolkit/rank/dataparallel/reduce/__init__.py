"""The hierarchical all-reduce of gradients: within each host first, equal shards between hosts, then back.

    from toolkit.rank.dataparallel.reduce.reducer import Reducer

    reducer = Reducer(native, store, rank, size, timeout_s, host, registry)
    work = reducer.allreduce(tensors, op)  # a Work, or None: hand it to the native backend
    reducer.by_path()                      # {name of the path: (calls, bytes given, bytes sent)}
    reducer.close()                        # when the group ends; also called at exit

Each process group has one Reducer. `native` is the group's gloo backend, `store` its store (equal on all its ranks),
`host` says which ranks share memory and where others find this host (`identify_host(environ)` makes it), `registry` is
the process's only one.

Every rank has to make the same calls in the same order, as with any backend. The first call that can be hierarchical
connects the ranks and measures both ways (docs/data-path.md), on all ranks at once. Afterwards a call's size, type
and operation alone decide, so all ranks decide alike. Tensors are reduced in place, in the reducer's own thread. The
Work's future holds the list of tensors, as gloo's does. If a peer is lost or late, Work.wait() raises an error in
gloo's words.
"""
