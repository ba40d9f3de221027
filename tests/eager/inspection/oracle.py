"""Find by brute force what the findings of a run must be: from each operator's real tensors alone.

No dim order is computed. The order of a tensor is read off the addresses of its first two elements along each
dim. Copies inside of an operator are counted by torch's profiler.
"""

from __future__ import annotations

from collections import Counter

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from dimorder.eager.inspection import findings


def ranks(shape, strides, dims):
    """How the corner elements, two along each of `dims`, are ranked by address; None if two are the same."""
    corners = torch.cartesian_prod(*([torch.arange(2)] * len(dims))).view(-1, len(dims))
    addresses = (corners * torch.tensor([strides[d] for d in dims])).sum(1)
    if len(set(addresses.tolist())) < len(addresses):
        return None
    return addresses.argsort(stable=True).tolist()


def alike(x, y):
    if 0 in x[0] or 0 in y[0]:
        return True
    dims = [d for d in range(len(x[0])) if x[0][d] > 1 and y[0][d] > 1]
    if not dims:
        return True
    a, b = ranks(*x, dims), ranks(*y, dims)
    return a is None or b is None or a == b


def kind(x):
    """As which of torch's two orders the elements lie, judged on dense tensors of the same sizes."""
    shape, strides = x
    dims = [d for d in range(len(shape)) if shape[d] > 1]
    if 0 in shape or not dims:
        return "ambiguous"
    if ranks(shape, strides, dims) is None:
        return "overlapping"
    first = (shape, torch.empty(shape, device="meta").stride())
    moved = torch.empty((shape[0], *shape[2:], shape[1]), device="meta").movedim(-1, 1)
    is_first, is_last = alike(x, first), alike(x, (shape, moved.stride()))
    if is_first and is_last:
        return "ambiguous"
    return "channels-last" if is_last else "row-major" if is_first else "permuted"


class Oracle(TorchDispatchMode):
    """Collects (verdict, operator, shape) per operator, hidden copies inside of operators aside."""

    def __init__(self):
        super().__init__()
        self.found = []
        self.operators = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.replace("::", ".")
        self.operators.append(name)
        tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        results = [x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]
        if tensors and results and name not in findings._ORDER_FREE:
            self.judge(func, name, tensors, results)
        return result

    def judge(self, func, name, tensors, results):
        made = (tuple(results[0].shape), results[0].stride())
        if len(made[0]) < 3:
            return
        operands = tensors[1:] if name == "aten.copy_" else tensors
        operands = operands[:1] if name in findings._FIRST_ONLY else operands
        peers = [(tuple(x.shape), x.stride()) for x in operands if x.dim() == len(made[0])]
        if not peers:
            return
        memories = {x.untyped_storage().data_ptr() for x in tensors} - {0}
        shares = any(x.untyped_storage().data_ptr() in memories for x in results)
        kinds = [kind(x) for x in peers]
        if shares and not func._schema.is_mutable:
            both = {kinds[0], kind(made)}
            if len(both) == 2 and not both & {"ambiguous", "overlapping"}:
                self.found.append(("free view", name, made[0]))
            return
        decided = [x for x, k in zip(peers, kinds, strict=True) if k not in ("ambiguous", "overlapping")]
        others = [k for x, k in zip(peers, kinds, strict=True) if not alike(x, made)]
        if any(not alike(x, y) for x in decided for y in decided):
            self.found.append(("mixed operands", name, made[0]))
        elif others and kind(made) == "row-major" and "channels-last" in others:
            self.found.append(("lost", name, made[0]))
        elif others:
            self.found.append(("moved", name, made[0]))
        elif kind(made) in ("channels-last", "row-major") and set(kinds) == {"ambiguous"}:
            self.found += [("ambiguous", name, made[0])] * (len({x[0] for x in peers}) == 1)


def outcomes(model, args):
    """Find what each operator did to the order; "moved" is a change that is neither loss nor free view."""
    oracle = Oracle()
    with torch.no_grad(), oracle:
        model(*args)
    return oracle


def copies_inside(model, args, operators):
    """How often each operator copied 3 dims or more, by the profiler: the outermost of `operators`."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.no_grad(), torch.profiler.profile(activities=activities, record_shapes=True) as profile:
        model(*args)
    counts = Counter()
    for event in profile.events():
        if event.name != "aten::copy_" or len(event.input_shapes[0]) < 3:
            continue
        around, outermost = event, None
        while around is not None:
            name = around.name.replace("::", ".")
            outermost = name if name in operators else outermost
            around = around.cpu_parent
        counts[outermost] += 1
    return counts
