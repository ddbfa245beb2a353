from torch_xla import rank as _rank

_position = _rank.position


def world_size() -> int:
    return int(_position.size)


def global_ordinal() -> int:
    return int(_position.rank)


def local_ordinal() -> int:
    return int(_position.local_rank)


def local_process_count() -> int:
    return int(_position.local_size)


def host_index() -> int:
    return int(_position.host)


def get_master_ip() -> str:
    return str(_position.master)


def device_type() -> str:
    return "CUDA" if _rank.device().type == "cuda" else "CPU"


def addressable_device_count() -> int:
    return 1


def is_spmd() -> bool:
    return False


def using_pjrt() -> bool:
    return True


process_count = global_device_count = world_size
process_index = global_ordinal
local_device_count = local_process_count
