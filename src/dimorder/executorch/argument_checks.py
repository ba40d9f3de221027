"""Check the arguments of the kernels of a .pte, which ExecuTorch takes on trust.

It ends the process if an argument is not of the kind that its kernel reads, or has no memory. `ValueError`
and `LookupError` say that a file is damaged.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from dimorder.errors import ContractError
from dimorder.runtime.kernels import VIEW, kernel_of, tensors_of

# executorch.exir.scalar_type.ScalarType, by its names, which are C's.
DTYPES: Mapping[str, str] = MappingProxyType(
    {
        "BYTE": "uint8",
        "CHAR": "int8",
        "SHORT": "int16",
        "INT": "int32",
        "LONG": "int64",
        "HALF": "float16",
        "FLOAT": "float32",
        "DOUBLE": "float64",
        "BOOL": "bool",
        "BFLOAT16": "bfloat16",
    }
)
# The kinds of values (KernelTypes in program.fbs) that runtime/core/evalue.h takes for a type of PyTorch's.
_KINDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "Tensor": ("Tensor",),
        "int": ("Int",),
        "float": ("Double",),
        "bool": ("Bool",),
        "number": ("Int", "Double", "Bool"),
        "Device": ("Int",),
        "str": ("String",),
        "List[int]": ("IntList",),
        "List[float]": ("DoubleList",),
        "List[bool]": ("BoolList",),
        "List[Tensor]": ("TensorList",),
        "List[Optional[Tensor]]": ("OptionalTensorList",),
    }
)
# Numbers by which kernels divide. A stride in memory, as of `as_strided`, may be 0.
_DIVISORS = ("groups", "stride", "dilation", "kernel_size", "step", "divisor")
_IN_MEMORY = ("as_strided_copy", "empty_strided")
_ITEMS: Mapping[str, str] = MappingProxyType({"IntList": "Int", "TensorList": "Tensor"})
# ExecuTorch's own operators: of exir/passes/*_registry.py, which the exporter imports, and a view.
_SCHEMAS: Mapping[str, Any] = MappingProxyType(
    {
        name: torch._C.parse_schema(name.removesuffix(".default") + arguments)
        for name, arguments in {
            "dim_order_ops::_to_dim_order_copy.out": "(Tensor self, *, bool non_blocking=False, "
            "int[]? dim_order=None, Tensor(a!) out) -> Tensor(a!)",
            "dim_order_ops::_clone_dim_order.out": "(Tensor self, *, bool non_blocking=False, "
            "int[]? dim_order=None, Tensor(a!) out) -> Tensor(a!)",
            "dim_order_ops::_empty_dim_order.out": "(int[] size, *, int[]? dim_order=None, "
            "Tensor(a!) out) -> Tensor(a!)",
            VIEW: "(Tensor self, int[] size, Tensor(a!) out) -> Tensor(a!)",
            "executorch_prim::floordiv.Scalar": "(Scalar a, Scalar divisor) -> Scalar",
            "executorch_prim::mod.Scalar": "(Scalar a, Scalar divisor) -> Scalar",
        }.items()
    }
)


def require_arguments(plan: Any) -> None:
    """Raise `ValueError` if a call of a kernel has an argument that ends the process.

    Args:
        plan: a method (executorch.exir.schema.ExecutionPlan). Operators that PyTorch does not know are left
            out.
    """
    kinds = [type(value.val).__name__ for value in plan.values]
    for value, kind in zip(plan.values, kinds, strict=True):
        if kind in _ITEMS and any(kinds[item] != _ITEMS[kind] for item in value.val.items):
            raise ValueError(f"values of another kind in {kind}")
    given = {*plan.inputs, *plan.outputs}  # values that get their memory or number at run time
    calls = [instruction.instr_args for chain in plan.chains for instruction in chain.instructions]
    for number, call in enumerate(calls):
        if type(call).__name__ == "MoveCall":
            given.add(call.move_to)
            if kinds[call.move_from] != kinds[call.move_to]:
                raise ValueError(f"call {number}, a move to a value of another kind")
        if type(call).__name__ == "JumpFalseCall" and kinds[call.cond_value_index] not in ("Bool", "Tensor"):
            raise ValueError(f"call {number}, a jump by a value of kind {kinds[call.cond_value_index]}")
        if type(call).__name__ == "FreeCall" and not _is_unbound(plan.values[call.value_index].val):
            raise ValueError(f"call {number}, a value is freed whose memory is not its own")
        if type(call).__name__ != "KernelCall":
            continue
        kernel = kernel_of(plan, call)
        place, schema = f"call {number}, {kernel}", _schema_of(kernel)
        if gives_number(kernel):
            given.add(call.args[-1])
            if kinds[call.args[-1]] not in _KINDS["number"]:
                raise ValueError(f"{place}: a result of kind {kinds[call.args[-1]]}")
        tensors = {index for arg in call.args for index in tensors_of(plan, arg)}
        if schema is None or kernel == VIEW:
            given |= tensors  # a view does so
        if schema is None:
            continue
        _require_kinds(place, schema.arguments, [kinds[index] for index in call.args])
        divisors = divisors_of(schema)
        for argument, index in zip(schema.arguments, call.args, strict=False):
            if argument.name in divisors and any(each not in given for each in _zeros(plan, index)):
                raise ValueError(f"{place}: {argument.name!r} is 0")
        if not all(_has_memory(plan.values[index].val) for index in tensors - given):
            raise ValueError(f"{place}: a tensor without memory")


def require_constant_sizes(tables: Any, plan: Any) -> None:
    """Raise `ValueError` if a constant of a method reaches into the next one in the file.

    Args:
        tables: a program, as `program_tables.read_program` returns it.
        plan: one of its methods.
    """
    tensors = [value.val for value in plan.values if type(value.val).__name__ == "Tensor"]
    for tensor in tensors if tables.constant_sizes else ():  # of an older ExecuTorch they lie in the tables
        # Memory of its own has its first value in another segment.
        is_elsewhere = not tensor.data_buffer_idx or tensor.allocation_info or _is_external(tensor)
        if is_elsewhere or tensor.scalar_type.name not in DTYPES:
            continue
        itemsize = getattr(torch, DTYPES[tensor.scalar_type.name]).itemsize
        given, needed = tables.constant_sizes[tensor.data_buffer_idx], math.prod(tensor.sizes) * itemsize
        if given < needed:
            raise ValueError(f"a constant of {given} bytes for a tensor of {needed}")


def require_constants(plan: Any, where: str) -> None:
    """Raise `ContractError` if a constant of a method lies in another file, a .ptd, which we do not read."""
    for value in plan.values:
        if type(value.val).__name__ == "Tensor" and _is_external(value.val):
            raise missing_constant_error(where, value.val.extra_tensor_info.fully_qualified_name)


def missing_constant_error(where: str, name: str | None) -> ContractError:
    """Return the error for a file without one of its constants."""
    fix = "lower the program again, or copy the file again; a .ptd beside it is not read"
    return ContractError(where, f"the constant {name!r}, which the file lacks", fix)


def _require_kinds(place: str, arguments: Sequence[Any], kinds: Sequence[str]) -> None:
    if len(kinds) < len(arguments):
        raise ValueError(f"{place}: {len(kinds)} arguments of {len(arguments)}")
    for argument, kind in zip(arguments, kinds, strict=False):  # the results follow, which no kernel reads
        allowed = _kinds(str(argument.type))
        if allowed and kind not in allowed:
            raise ValueError(f"{place}: {argument.name!r} is of kind {kind}")


def gives_number(kernel: str) -> bool:
    """Return whether a kernel writes a number, such as a size or the result of arithmetic on sizes.

    >>> gives_number("aten::sym_size.int"), gives_number("executorch_prim::mul.Scalar"), gives_number(VIEW)
    (True, True, False)
    """
    if kernel.startswith("executorch_prim::"):
        return not kernel.startswith("executorch_prim::et_")
    schema = _schema_of(kernel)
    return schema is not None and {str(each.type) for each in schema.returns} in (
        {"int"},
        {"bool"},
        {"number"},
    )


def divisors_of(schema: Any) -> tuple[str, ...]:
    """Return the names of arguments by which the kernel of an operator divides."""
    return () if schema.name.partition("::")[2] in _IN_MEMORY else _DIVISORS


def _zeros(plan: Any, index: int) -> list[int]:
    """Return the integers of value 0, as indices of values: the value itself, or items in its list."""
    value = plan.values[index].val
    places = value.items if type(value).__name__ == "IntList" else [index]
    return [i for i in places if getattr(plan.values[i].val, "int_val", None) == 0]


def _schema_of(kernel: str) -> Any:
    """Return the schema of a kernel's operator, or None if PyTorch does not know it.

    >>> _schema_of("aten::cumsum.out").overload_name, _schema_of("mine::sum.out")
    ('out', None)
    """
    name, _, overload = kernel.partition(".")
    if kernel in _SCHEMAS or not re.fullmatch(r"\w+::\w+", name):
        return _SCHEMAS.get(kernel)
    known = torch._C._jit_get_schemas_for_operator(name)
    return next((schema for schema in known if schema.overload_name == overload), None)


def _kinds(of: str) -> tuple[str, ...]:
    """Return the kinds for a type of PyTorch's; empty if all are allowed.

    >>> _kinds("Optional[float]"), _kinds("Generator")
    (('Double', 'Null'), ())
    """
    inner = of.removeprefix("Optional[")
    if inner == of:
        return _KINDS.get(of, ())
    kinds = _KINDS.get(inner[:-1], ())
    return (*kinds, "Null") if kinds else ()


def _has_memory(tensor: Any) -> bool:
    """Return whether a tensor is planned, constant, empty, of another file, or resized by its kernel."""
    return bool(
        tensor.data_buffer_idx
        or tensor.allocation_info
        or not math.prod(tensor.sizes)
        or _is_external(tensor)
        or _is_unbound(tensor)
    )


def _is_unbound(value: Any) -> bool:
    """Return whether a value is a tensor that its kernel resizes."""
    return type(value).__name__ == "Tensor" and value.shape_dynamism.name == "DYNAMIC_UNBOUND"


def _is_external(tensor: Any) -> bool:
    info = tensor.extra_tensor_info
    return info is not None and info.location.name == "EXTERNAL"
