"""A rank that calls each function of the module form beside torch.distributed's over gloo, and prints what differs."""

import itertools
import json
import os
import sys
import warnings

import torch
import torch.distributed as dist
from torch import nn

torch.set_num_threads(1)
warnings.simplefilter("ignore")  # Also torch's about ranks that are not in a group.
import smdistributed.dataparallel.torch.distributed as old

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
old.init_process_group(rank=rank, world_size=size)
PAIRS = {"all": (old.group.WORLD, dist.new_group(list(range(size)), backend="gloo"))}
for name, members in (("first and last", [0, size - 1]), ("one", [1])):
    PAIRS[name] = (dist.new_group(members, backend="smddp"), dist.new_group(members, backend="gloo"))

KINDS = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool)
KINDS += (torch.complex64,)
OPERATIONS = {
    "AVERAGE": (old.ReduceOp.AVERAGE, dist.ReduceOp.AVG),
    "the old SUM": (old.ReduceOp.SUM, dist.ReduceOp.SUM),
    "the old MIN": (old.ReduceOp.MIN, dist.ReduceOp.MIN),
    "the old MAX": (old.ReduceOp.MAX, dist.ReduceOp.MAX),
    **{
        name: (getattr(dist.ReduceOp, name), getattr(dist.ReduceOp, name))
        for name in ("SUM", "AVG", "MIN", "MAX", "PRODUCT", "BAND", "BOR", "BXOR")
    },
}
SHAPES = {
    "plain": lambda base: base.clone(),
    "empty": lambda base: base[:0].clone(),
    "scalar": lambda base: base[0, 0].clone(),
    "columns": lambda base: base.clone()[:, ::2],
    "transposed": lambda base: base.clone().t(),
}
compared, different = 0, []


def base(kind):
    values = torch.arange(12).reshape(3, 4) % 5 + rank + 1
    return values.to(kind)


def outcome(function, *arguments, **options):
    """Return what *function* left in its first argument, or the kind of its error."""
    try:
        work = function(*arguments, **options)
        if options.get("async_op") and work is not None:
            work.wait()
    except (RuntimeError, ValueError, TypeError) as error:
        return type(error).__name__
    return arguments[0]


def same(first, other):
    if isinstance(first, str) or isinstance(other, str):
        return isinstance(first, str) and isinstance(other, str)
    if isinstance(first, list):
        return all(same(a, b) for a, b in zip(first, other, strict=True))
    return first.dtype == other.dtype and torch.equal(first, other)


def compare(label, first, other):
    global compared
    compared += 1
    if not same(first, other):
        different.append([label, repr(first)[:80], repr(other)[:80]])


for (group, (smddp_group, gloos)), kind, (form, shaped) in itertools.product(PAIRS.items(), KINDS, SHAPES.items()):
    later = {"async_op": form in ("plain", "columns")}
    label = f"{group}, {kind}, {form}, {later}"

    def dense(values, shaped=shaped):
        """Gloo gives wrong numbers for strided tensors."""
        return shaped(values).contiguous()

    for operation, (word, native) in OPERATIONS.items():
        compare(
            f"all_reduce {operation}, {label}",
            outcome(old.all_reduce, shaped(base(kind)), op=word, group=smddp_group, **later),
            outcome(dist.all_reduce, dense(base(kind)), op=native, group=gloos, **later),
        )
    root = 1 if group == "one" else 0
    compare(
        f"broadcast, {label}",
        outcome(old.broadcast, shaped(base(kind)), src=root, group=smddp_group, **later),
        outcome(dist.broadcast, dense(base(kind)), src=root, group=gloos, **later),
    )
    many = max(old.get_world_size(smddp_group), 1)
    compare(
        f"all_gather, {label}",
        outcome(
            old.all_gather, [shaped(base(kind)) for _ in range(many)], shaped(base(kind)), group=smddp_group, **later
        ),
        outcome(dist.all_gather, [dense(base(kind)) for _ in range(many)], dense(base(kind)), group=gloos, **later),
    )
    pieces = torch.cat([base(kind).flatten()] * many)
    compare(
        f"all_to_all_single, {label}",
        outcome(old.all_to_all_single, torch.zeros_like(pieces), pieces, group=smddp_group, **later),
        outcome(dist.all_to_all_single, torch.zeros_like(pieces), pieces, group=gloos, **later),
    )
for group, (smddp_group, gloos) in PAIRS.items():
    compare(f"get_rank, {group}", torch.tensor(old.get_rank(smddp_group)), torch.tensor(dist.get_rank(gloos)))
    compare(
        f"get_world_size, {group}",
        torch.tensor(old.get_world_size(smddp_group)),
        torch.tensor(dist.get_world_size(gloos)),
    )
    old.barrier(smddp_group)
    old.barrier(group=smddp_group, async_op=True)
    dist.monitored_barrier(None if smddp_group is old.group.WORLD else smddp_group)
    dist.monitored_barrier(gloos)


def column(first, length=2):
    """Return a tensor of *length* numbers from *first* on, with others between them in its memory."""
    return torch.arange(first, first + 3 * length).double().reshape(length, 3).clone()[:, 0]


def columns(first, count=size):
    return [column(first + 10 * number) for number in range(count)]


STRIDED = {
    "broadcast": (dist.broadcast, lambda: (column(rank), 0)),
    "scatter": (dist.scatter, lambda: (column(0), columns(rank) if rank == 0 else None)),
    "reduce_scatter": (dist.reduce_scatter, lambda: (column(0), columns(rank))),
    "reduce_scatter_tensor": (dist.reduce_scatter_tensor, lambda: (column(0), column(rank, 2 * size))),
    "all_gather_into_tensor": (dist.all_gather_into_tensor, lambda: (column(0, 2 * size), column(rank))),
    "all_to_all": (dist.all_to_all, lambda: (columns(0), columns(rank))),
    "all_to_all_single": (dist.all_to_all_single, lambda: (column(0, size), column(rank, size))),
}
try:
    dist.all_to_all(*([torch.zeros(1) for _ in range(size)] for _ in range(2)), group=PAIRS["all"][1])
except RuntimeError:
    del STRIDED["all_to_all"]  # gloo of torch 2.9 has none.


def contiguous(tensors):
    if isinstance(tensors, list | tuple):
        return [contiguous(tensor) for tensor in tensors]
    return tensors.contiguous() if isinstance(tensors, torch.Tensor) else tensors


for name, (function, arguments) in STRIDED.items():
    smddp_group, gloos = arguments(), contiguous(arguments())
    between = [tensor._base for tensor in smddp_group if isinstance(tensor, torch.Tensor)]
    beside = [base[:, 1:].clone() for base in between]
    function(*smddp_group)
    function(*gloos, group=PAIRS["all"][1])
    compare(f"{name}, strided", smddp_group[0], gloos[0])
    compare(f"{name}, beside", [base[:, 1:] for base in between], beside)
column_of_root, contiguous_column = column(rank), column(rank).contiguous()
dist.reduce(column_of_root, 0)
dist.reduce(contiguous_column, 0, group=PAIRS["all"][1])
gathered = columns(0) if rank == 0 else None
dist.gather(column(rank), gathered)
if rank == 0:  # On other ranks what reduce leaves is not defined.
    compare("reduce, strided", column_of_root, contiguous_column)
    compare("gather, strided", gathered, [column(other) for other in range(size)])
transposed = [torch.arange(6.0).reshape(2, 3).t() if rank else torch.arange(6.0).reshape(2, 3).t().contiguous()]
dist.all_reduce(transposed[0])
compare("all_reduce, transposed on some ranks", transposed[0], torch.arange(6.0).reshape(2, 3).t() * size)

refused = []
# Not compared: gloo itself writes beyond the memory of such a tensor.
try:
    old.all_reduce(torch.ones(1, 4).expand(3, 4))
except ValueError as error:
    refused.append(str(error).replace("found", "got"))
for options in ({"op": "mean"}, {"op": None}, {"op": 7}, {"group": "some"}, {"group": 1}):
    try:
        old.all_reduce(torch.ones(1), **options)
    except ValueError as error:
        refused.append(str(error))


def trained(group):
    """Return the gradients of a model with a sparse and a dense embedding."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 2))
    model = nn.parallel.DistributedDataParallel(model, process_group=group)
    model(torch.tensor([rank, rank + 1, 5])).square().sum().backward()
    return [parameter.grad.to_dense() for parameter in model.parameters()]


compare("sparse gradients", trained(None), trained(PAIRS["all"][1]))
half = torch.sparse_coo_tensor([[rank]], [1.0], (4,))
dist.all_reduce(half)
compare("sparse all_reduce", half.to_dense(), torch.tensor([1.0] * size + [0.0] * (4 - size)))

print(json.dumps({"compared": compared, "different": different, "refused": refused}), flush=True)
dist.destroy_process_group()
sys.stdout.flush()
