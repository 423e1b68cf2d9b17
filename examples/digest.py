"""Compare the final states of two runs, value by value. Imports nothing of onward, so it is an independent witness.

    python examples/digest.py A B

reads A.0.pt, A.1.pt, ... and B.0.pt, B.1.pt, ... as the examples write them with --digest, and prints a SHA-256 for
each rank of each run, then EQUAL (exit 0) or DIFFERENT with the path of the first difference (exit 1). Files that are
missing or cannot be read end it with exit 2.
"""

import argparse
import hashlib
import re
import struct
import sys
from pathlib import Path

import torch

EQUAL, DIFFERENT, UNREADABLE = 0, 1, 2


class Unreadable(Exception):
    """There is no such state to compare."""


def bits(tensor):
    # As bytes, so that 0.0 and -0.0, and every NaN, count as the bits they are.
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def leaves(value, path=""):
    """Every value as (path, kind, bytes, value), in an order that does not depend on how dicts were filled."""
    match value:
        case torch.Tensor():
            if value.layout != torch.strided or value.is_quantized:
                raise Unreadable(f"{path}: only dense tensors can be compared, this one is {value.layout}")
            yield path, f"tensor {value.dtype} {list(value.shape)}", bits(value).numpy().tobytes(), value
        case dict():
            keys = sorted(value, key=lambda key: (type(key).__name__, repr(key)))
            yield path, "dict", repr(keys).encode(), value
            for key in keys:
                yield from leaves(value[key], f"{path}/{key}" if path else str(key))
        case list() | tuple():
            yield path, f"{type(value).__name__} of {len(value)}", b"", value
            for i, item in enumerate(value):
                yield from leaves(item, f"{path}[{i}]")
        case float():
            yield path, "float", struct.pack(">d", value), value
        case None | bool() | int() | str() | bytes():
            yield path, type(value).__name__, repr(value).encode(), value
        case _:
            raise Unreadable(f"{path}: a {type(value).__name__} cannot be compared")


def digest(state):
    total = hashlib.sha256()
    for path, kind, content, _ in leaves(state):
        for part in (path.encode(), kind.encode(), content):
            # With its length before it, so that no two different lists of parts read the same.
            total.update(struct.pack(">Q", len(part)) + part)
    return total.hexdigest()


def describe(path, a, b):
    """A line on two values of one kind, at one path, that differ."""
    if isinstance(a, dict):
        key = min(a.keys() ^ b.keys(), key=repr)
        return f"{path}/{key}: only in the {'first' if key in a else 'second'} run".lstrip("/")
    if isinstance(a, torch.Tensor):
        position = int((bits(a) != bits(b)).nonzero()[0]) // a.element_size()
        index = [int(i) for i in torch.unravel_index(torch.tensor(position), a.shape)] if a.dim() else ""
        return f"{path}{index}: {a.reshape(-1)[position].item()!r} against {b.reshape(-1)[position].item()!r}"
    return f"{path}: {a!r} against {b!r}"


def first_difference(a, b):
    # Up to the first difference both walks take the same way, so they can be compared in step.
    for (path, kind, content, value), (_, kind_b, content_b, value_b) in zip(leaves(a), leaves(b), strict=False):
        if kind != kind_b:
            return f"{path}: {kind} against {kind_b}"
        if content != content_b:
            return describe(path, value, value_b)
    raise AssertionError("the digests differ, the values do not")


def files_by_rank(run):
    name = re.compile(re.escape(run.name) + r"\.(\d+)\.pt")
    found = {int(m[1]): path for path in run.parent.glob("*.pt") if (m := name.fullmatch(path.name))}
    if not found:
        raise Unreadable(f"{run}: no file {run}.<rank>.pt; did that run get to its end, with --digest {run}?")
    return found


def load(path):
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file can raise nearly anything
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise Unreadable(f"{path}: not a state file that can be read: {reason}") from None


def compare(first, second):
    """Prints the digests of both runs and returns where they first differ, or None."""
    files_a, files_b = files_by_rank(first), files_by_rank(second)
    missing = [f"{first}.{rank}.pt" for rank in sorted(files_b.keys() - files_a.keys())]
    missing += [f"{second}.{rank}.pt" for rank in sorted(files_a.keys() - files_b.keys())]
    if missing:
        raise Unreadable(f"missing: {', '.join(missing)}; both runs must have the same ranks")
    difference = None
    for rank in sorted(files_a):
        a, b = load(files_a[rank]), load(files_b[rank])
        digest_a, digest_b = digest(a), digest(b)
        print(f"rank {rank}  {digest_a}  {first}\nrank {rank}  {digest_b}  {second}")
        if digest_a != digest_b and difference is None:
            difference = f"rank {rank}, {first_difference(a, b)}"
    return difference


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=Path, metavar="A")
    parser.add_argument("second", type=Path, metavar="B")
    args = parser.parse_args()
    try:
        difference = compare(args.first, args.second)
    except Unreadable as error:
        print(f"digest: {error}", file=sys.stderr)
        return UNREADABLE
    print(f"DIFFERENT: {difference}" if difference else "EQUAL")
    return DIFFERENT if difference else EQUAL


if __name__ == "__main__":
    sys.exit(main())
