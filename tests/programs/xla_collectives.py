"""Every collective of torch_xla and torch.distributed on XLA tensors, compared with results by hand. For 2 ranks."""

import os
import sys

import torch
import torch.distributed as dist
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp
import torch_xla.runtime as xr


def same(actual, expected):
    assert str(actual.device).startswith("xla"), actual.device
    assert actual.cpu().tolist() == expected, (actual.cpu().tolist(), expected)


def view(index):
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    assert size == 2
    assert index == rank
    assert (xr.world_size(), xr.global_ordinal(), xr.local_ordinal()) == (2, rank, int(os.environ["LOCAL_RANK"]))
    assert (xr.process_count(), xr.process_index(), xr.global_device_count()) == (2, rank, 2)
    assert (xm.xrt_world_size(), xm.get_ordinal(), xm.get_local_ordinal()) == (2, rank, rank)
    assert xm.is_master_ordinal(local=False) == (rank == 0)
    return rank, xm.xla_device()


def torch_xlas(rank, device):
    value = torch.tensor([1.0, 2.0], device=device) * (rank + 1)
    same(xm.all_reduce(xm.REDUCE_SUM, value), [3.0, 6.0])
    same(xm.all_reduce(xm.REDUCE_MAX, value, scale=0.5), [1.0, 2.0])
    same(xm.all_reduce(xm.REDUCE_SUM, value, groups=[[0], [1]]), [1.0 * (rank + 1), 2.0 * (rank + 1)])
    several = [value.clone(), torch.tensor([rank], device=device), torch.tensor(2.5, device=device)]
    assert xm.all_reduce(xm.REDUCE_SUM, several) is several
    same(several[0], [3.0, 6.0])
    same(several[1], [1])
    same(several[2], 5.0)
    same(xm.all_gather(value), [1.0, 2.0, 2.0, 4.0])
    same(xm.all_gather(value.view(2, 1), dim=-1), [[1.0, 2.0], [2.0, 4.0]])
    same(xm.reduce_scatter(xm.REDUCE_SUM, torch.arange(4.0, device=device), 1.0, 0, 2), [4.0 * rank, 4.0 * rank + 2.0])
    same(xm.all_to_all(torch.arange(2.0, device=device) + 10 * rank, 0, 0, 2), [0.0 + rank, 10.0 + rank])
    same(xm.collective_permute(value, [[0, 1], [1, 0]]), [2.0 - rank, 4.0 - 2 * rank])
    same(xm.collective_permute(value, [[1, 0]]), [2.0, 4.0] if rank == 0 else [0.0, 0.0])
    root = torch.tensor([float("nan") if rank else 7.0], device=device)
    xm.collective_broadcast([root])
    same(root, [7.0])
    assert xm.rendezvous("bytes", b"x" * rank) == [b"", b"x"]
    assert xm.mesh_reduce("objects", {"rank": rank}, list) == [{"rank": 0}, {"rank": 1}]
    try:
        xr.use_spmd()
    except NotImplementedError as error:
        assert "SPMD" in str(error)
    else:
        raise AssertionError("an SPMD mesh over processes was let pass")


def torchs(rank, device):
    dist.init_process_group("xla", init_method="xla://")
    assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (rank, 2, "xla")
    value = torch.tensor([1.0, 2.0], device=device) * (rank + 1)
    dist.all_reduce(value)
    same(value, [3.0, 6.0])
    dist.all_reduce(value, op=dist.ReduceOp.AVG)
    same(value, [3.0, 6.0])
    tensor = torch.tensor([float(rank)], device=device)
    gathered = [torch.zeros(1, device=device) for _ in range(2)]
    dist.all_gather(gathered, tensor)
    same(torch.cat(gathered), [0.0, 1.0])
    flat = torch.zeros(2, device=device)
    dist.all_gather_into_tensor(flat, tensor)
    same(flat, [0.0, 1.0])
    dist.reduce_scatter_tensor(tensor, torch.arange(2.0, device=device))
    same(tensor, [2.0 * rank])
    dist.reduce_scatter(tensor, list(torch.arange(2.0, device=device).chunk(2)))
    same(tensor, [2.0 * rank])
    dist.all_to_all_single(flat, torch.arange(2.0, device=device) + 10 * rank)
    same(flat, [0.0 + rank, 10.0 + rank])
    unequal = [torch.zeros(1 + variable, device=device) for variable in range(2)]
    dist.all_to_all(unequal, [torch.full((1 + rank,), 1.0 + rank, device=device) for _ in range(2)])
    same(torch.cat(unequal), [1.0, 2.0, 2.0])
    dist.scatter(
        tensor, [torch.full((1,), 5.0 + number, device=device) for number in range(2)] if rank == 0 else None, src=0
    )
    same(tensor, [5.0 + rank])
    dist.gather(tensor, gathered if rank == 0 else None, dst=0)
    if rank == 0:
        same(torch.cat(gathered), [5.0, 6.0])
    dist.broadcast(tensor, 1)
    same(tensor, [6.0])
    if rank == 0:
        dist.send(tensor * 2, 1)
    else:
        dist.recv(tensor, 0)
        same(tensor, [12.0])
    dist.barrier()
    alone = [dist.new_group([variable]) for variable in range(2)][rank]
    dist.all_reduce(value, group=alone)
    same(value, [3.0, 6.0])
    objects = [None, None]
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": 0}, {"rank": 1}]
    on_host = torch.ones(2) * rank
    dist.all_reduce(on_host)
    assert on_host.tolist() == [1.0, 1.0]
    import torch.distributed._functional_collectives as functional

    same(functional.all_reduce(torch.ones(1, device=device) * rank, "sum", dist.group.WORLD).wait(), [1.0])
    same(functional.all_gather_tensor(torch.ones(1, device=device) * rank, 0, dist.group.WORLD).wait(), [0.0, 1.0])


def replicas(rank, device):
    """DistributedDataParallel from unequal weights: both ranks get the same bits."""
    torch.manual_seed(rank)
    module = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 1)).to(device)
    parallel = torch.nn.parallel.DistributedDataParallel(module)
    optimizer = torch.optim.SGD(parallel.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        parallel(torch.randn(4, 8).to(device)).pow(2).mean().backward()
        optimizer.step()
        torch_xla.sync()
    weights = [parameter.detach().cpu().numpy().tobytes() for parameter in module.parameters()]
    assert xm.mesh_reduce("weights", weights, lambda values: values[0] == values[1])
    scaler = __import__("torch_xla.amp", fromlist=["GradScaler"]).GradScaler()
    weight = torch.ones(1, device=device, requires_grad=True)
    plain = torch.optim.SGD([weight], 1.0)
    scaler.scale((weight * (rank + 1)).sum()).backward()
    xm.all_reduce(xm.REDUCE_SUM, xm._fetch_gradients(plain), scale=1.0 / xm.xrt_world_size())
    scaler.step(plain)
    scaler.update()
    same(weight.detach(), [-0.5])


def _mp_fn(index, words):
    assert words == ("two", "words")
    rank, device = view(index)
    torch_xlas(rank, device)
    torchs(rank, device)
    replicas(rank, device)
    dist.destroy_process_group()
    print(f"rank {rank} is right", flush=True)


if __name__ == "__main__":
    assert sys.argv[1:] == ["--epochs", "3"], sys.argv
    xmp.spawn(_mp_fn, args=(("two", "words"),), nprocs=8)
