"""Reads a dump of torch's Flight Recorder: which collectives a rank has called.

The form is that of torch.distributed's `_dump_fr_trace`, version 2.10, as torch 2.9.1 and 2.13 write it: `entries`,
`pg_config` and `pg_status`. The rank hook adds what gloo does not record: the rank's number and the groups' ranks.
torch's own JSON has no frames, and a rank that ended while it wrote leaves half a file: whatever is missing or has
another form is left out, and nothing is raised.
"""

import math
from typing import Any

import msgspec

from toolkit.collectives.records import (
    MOST_CALLS,
    MOST_GROUPS,
    MOST_NAME,
    MOST_PATH,
    MOST_RANKS,
    CollectiveCall,
    GroupCalls,
    RankCalls,
)

MOST_BYTES = 32 << 20
MOST_NUMBER = 1 << 53
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3", "/lib64/python3")
# By operation, of which side the elements are counted: they must be equal on all ranks, and so must the types. Of
# an operation without a row only the types must be equal (all_to_all: ranks send as much as they like). All ranks of
# an uneven all_gather or reduce_scatter have the same whole, if not the same parts.
_COUNTED = {
    "all_reduce": "input",
    "allreduce": "input",
    "allreduce_coalesced": "input",
    "broadcast": "input",
    "reduce": "input",
    "gather": "input",
    "scatter": "output",
    "all_gather": "output",
    "_allgather_base": "output",
    "all_gather_into_tensor_coalesced": "output",
    "reduce_scatter": "input",
    "_reduce_scatter_base": "input",
    "reduce_scatter_tensor_coalesced": "input",
}


def read_dump(text: bytes, rank: int | None = None) -> RankCalls | None:
    """Return the calls in *text*, a dump as JSON; None if it is damaged, or says not whose it is.

    *rank*: the rank that it is of, None if the dump says so, as those of the rank hook do.
    """
    if len(text) > MOST_BYTES:
        return None
    try:
        dump = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(dump, dict) or not isinstance(dump.get("entries"), list):
        return None
    number = _number(dump.get("rank")) if rank is None else rank
    if number is None:
        return None
    entries = [entry for entry in dump["entries"][-MOST_CALLS:] if isinstance(entry, dict)]
    # The recorder numbers its entries from 0: if the first is there, it has dropped none.
    ids = [_number(entry.get("record_id")) for entry in entries]
    is_whole = None not in ids and (not ids or 0 in ids)
    groups = _read_groups(entries, dump.get("pg_config"), is_whole=is_whole)
    return RankCalls(rank=number, groups=groups[-MOST_GROUPS:], is_whole=is_whole and len(groups) <= MOST_GROUPS)


def _read_groups(entries: list[dict[str, Any]], config: object, *, is_whole: bool) -> tuple[GroupCalls, ...]:
    # By name: the entries of its newest group, which has the highest pg_id: a name returns after
    # destroy_process_group.
    newest: dict[tuple[str, str], int] = {}
    entries_by_group: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for entry in entries:
        name, group_id = entry.get("process_group"), _number(entry.get("pg_id"))
        if not isinstance(name, list | tuple) or len(name) != 2 or group_id is None:
            continue
        key = (str(name[0])[:MOST_NAME], str(name[1])[:MOST_NAME])
        if group_id > newest.get(key, -1):
            newest[key], entries_by_group[key] = group_id, []
        if group_id == newest[key]:
            entries_by_group[key].append(entry)
    # Of several entries with one number, the parts of a coalesced call, the recorder may have dropped some.
    cut = None if is_whole or not entries else (entries[0].get("pg_id"), entries[0].get("collective_seq_id"))
    groups = []
    for (name, description), of_group in entries_by_group.items():
        calls = _read_calls(
            [entry for entry in of_group if (entry.get("pg_id"), entry.get("collective_seq_id")) != cut]
        )
        groups.append(GroupCalls(name=name, description=description, ranks=_read_ranks(config, name), calls=calls))
    return tuple(groups)


def _read_calls(entries: list[dict[str, Any]]) -> tuple[CollectiveCall, ...]:
    """Return the calls of one group; the parts of a coalesced one have one number."""
    parts_by_number: dict[int, list[CollectiveCall]] = {}
    for entry in entries:
        if (call := _read_call(entry)) is not None:
            parts_by_number.setdefault(call.number, []).append(call)
    return tuple(_joined(parts) for _, parts in sorted(parts_by_number.items()))


def _joined(parts: list[CollectiveCall]) -> CollectiveCall:
    if len(parts) == 1:
        return parts[0]
    return msgspec.structs.replace(
        parts[0],
        operation=" + ".join(dict.fromkeys(part.operation for part in parts))[:MOST_NAME],
        payload=" + ".join(part.payload for part in parts)[:MOST_NAME],
        is_complete=all(part.is_complete for part in parts),
    )


def _read_call(entry: dict[str, Any]) -> CollectiveCall | None:
    number, operation = _number(entry.get("collective_seq_id")), entry.get("profiling_name")
    # A transfer from one rank to another is no call that all ranks of the group have.
    if number is None or not isinstance(operation, str) or entry.get("is_p2p") is True:
        return None
    name = operation.rpartition(":")[2][:MOST_NAME]
    file, line, function = _read_place(entry.get("frames"))
    return CollectiveCall(
        number=number,
        operation=name,
        payload=_describe_payload(name, entry)[:MOST_NAME],
        # gloo's entries stay "scheduled"; they are retired when they are complete.
        is_complete=entry.get("retired") is True or entry.get("state") == "completed",
        file=file,
        line=line,
        function=function,
    )


def _describe_payload(operation: str, entry: dict[str, Any]) -> str:
    """Return "4 Float" for what must be equal on all ranks."""
    side = _COUNTED.get(operation)
    types = entry.get(f"{side or 'input'}_dtypes")
    names = " ".join(dict.fromkeys(str(name) for name in types)) if isinstance(types, list | tuple) else ""
    elements = _count_elements(entry.get(f"{side}_sizes")) if side is not None else None
    return f"{elements} {names}" if names and elements is not None else names


def _count_elements(sizes: object) -> int | None:
    """Return how many elements tensors of these *sizes* have together, None: that is not known."""
    if not isinstance(sizes, list | tuple):
        return None
    total = 0
    for shape in sizes:
        numbers = [_number(size) for size in shape] if isinstance(shape, list | tuple) else [None]
        if None in numbers:
            return None
        total += math.prod(number for number in numbers if number is not None)
    return total


def _read_place(frames: object) -> tuple[str, int, str]:
    """Return (file, line, function) of the innermost frame of the user's own code, else of the innermost one."""
    readable = [frame for frame in frames if isinstance(frame, dict)] if isinstance(frames, list | tuple) else []
    users = (frame for frame in readable if not any(part in str(frame.get("filename")) for part in _LIBRARIES))
    frame = next(users, readable[0] if readable else None)
    if frame is None:
        return "", 0, ""
    file, line, function = (frame.get(key) for key in ("filename", "line", "name"))
    return str(file)[-MOST_PATH:], _number(line) or 0, str(function)[:MOST_NAME]


def _read_ranks(config: object, name: str) -> tuple[int, ...]:
    """Return the ranks of the group *name*, which torch writes as the text "[0, 1]"; () if they are not known."""
    group = config.get(name) if isinstance(config, dict) else None
    text = group.get("ranks") if isinstance(group, dict) else None
    try:
        ranks = msgspec.json.decode(text.encode(), type=tuple[int, ...]) if isinstance(text, str) else ()
    except (msgspec.DecodeError, ValueError, RecursionError):
        return ()
    return ranks if len(ranks) <= MOST_RANKS and all(0 <= rank <= MOST_NUMBER for rank in ranks) else ()


def _number(value: object) -> int | None:
    is_number = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_NUMBER
    return value if is_number and isinstance(value, int) else None
