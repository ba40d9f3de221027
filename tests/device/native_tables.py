"""Write the tables that the C++ loader shares with Python: `python -m tests.device.native_tables`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from dimorder.cmake import CPP
from dimorder.executorch import argument_checks, delegate_checks, delegate_orders, program_tables, xnn_blob
from dimorder.runtime.kernels import VIEW, KernelTable

PATH = CPP / "src" / "tables.h"

# Fields of XNNGraph and its tables, and of a node, by their names in Python.
_DELEGATE_FIELDS = {
    xnn_blob: (
        *("_GRAPH_NODES", "_GRAPH_VALUES", "_GRAPH_INPUTS", "_GRAPH_OUTPUTS", "_GRAPH_CONSTANTS"),
        *("_CONSTANT_SIZE", "_CONSTANT_NAME", "_NODE_KIND", "_NODE", "TRANSPOSE_PERM"),
        *("_VALUE_KIND", "_VALUE", "_QUANTIZED_TENSOR", "_QUANT_KIND", "_QUANT"),
        *("TENSOR_DATATYPE", "TENSOR_DIMS", "TENSOR_CONSTANT", "TENSOR_EXTERNAL_ID", "TENSOR_FLAGS"),
        *(
            "_TENSOR_ID",
            "EXTERNAL_INPUT",
            "EXTERNAL_OUTPUT",
            "_PLAIN",
            "_QUANTIZED",
            "_PER_CHANNEL",
            "_PER_GROUP",
        ),
        *("_SCALES_INLINE", "_CHANNEL_DIM", "_CHANNEL_SCALES", "_GROUP_SIZE", "_GROUP_SCALES"),
    ),
    delegate_orders: ("_FLOAT32", "_NODE_HANDLE", "_PAD_BEFORE", "_PAD_AFTER", "_INSERTED"),
    delegate_checks: ("_FILTER",),
}
# Traits of a node: the bits of `XnnNode::traits`, by their names in Python.
_TRAITS = {
    delegate_orders: ("_UNARY", "_BINARY", "_LAST_DIM", "_SILENT", "_GIVE_NHWC", "_GIVE_NCHW"),
    delegate_checks: ("_CONVOLUTIONS",),
}
# A letter for each type of PyTorch's; "?" after it allows None, and "/" says that the kernel divides by it.
# "=" at the end says that the result is a number.
_LETTERS = {
    "Tensor": "T",
    "int": "i",
    "float": "d",
    "bool": "b",
    "number": "n",
    "str": "s",
    "List[int]": "I",
    "List[float]": "D",
    "List[bool]": "B",
    "List[Tensor]": "L",
    "List[Optional[Tensor]]": "O",
}


def native_tables() -> str:
    """Return the text of the header."""
    kinds = program_tables._UNIONS["KernelTypes"]
    return "\n".join(
        [
            "// What the loader knows of ExecuTorch: `python -m tests.device.native_tables` writes it",
            "// from the tables of dimorder's Python package: change those.",
            "#pragma once",
            "",
            "#include <cstdint>",
            "",
            "namespace dimorder::tables {",
            "",
            "// Places of fields in their tables, and numbers of members and flags.",
            *_constants(),
            "",
            *_enumeration("Kind", kinds),
            f"inline constexpr const char* kKinds[] = {{{_quoted(kinds)}}};",
            *_enumeration("Instruction", program_tables._UNIONS["InstructionArguments"]),
            f"inline constexpr uint8_t kScalarTypes[] = {{{_listed(program_tables._SCALAR_NUMBERS)}}};",
            "",
            "/// The kinds that a type of PyTorch's allows, as bits.",
            "struct Type {",
            "  char letter;",
            "  uint16_t kinds;",
            "};",
            "inline constexpr Type kTypes[] = {",
            *(
                f"    {{'{letter}', {sum(1 << kinds.index(kind) for kind in argument_checks._KINDS[name])}}},"
                for name, letter in _LETTERS.items()
            ),
            "};",
            "",
            '/// A kernel and a letter for each argument: "?" allows None, and it divides by one with "/".',
            '/// "=" at the end says that the result is a number.',
            "struct Schema {",
            "  const char *kernel, *arguments;",
            "};",
            "inline constexpr Schema kSchemas[] = {",
            *(f'    {{"{kernel}", "{letters}"}},' for kernel, letters in _schemas()),
            "};",
            "",
            "/// A call of a kernel that gives wrong numbers: the rank, and a letter for each order.",
            "struct Wrong {",
            "  const char *kernel, *signature;",
            "};",
            "inline constexpr Wrong kWrong[] = {",
            *(f'    {{"{kernel}", "{signature}"}},' for kernel, signature in _wrong()),
            "};",
            "",
            *_enumeration("Trait", [name for names in _TRAITS.values() for name in names], flags=True),
            "/// A node of XNNPACK's: which fields are its operands and its result.",
            "struct XnnNode {",
            "  const char* kind;",
            "  uint8_t count, operands[5], result, traits;",
            "};",
            "inline constexpr XnnNode kXnnNodes[] = {",
            *(f"    {_node(kind)}," for kind in delegate_orders._KINDS),
            "};",
            f"inline constexpr int kFilterSizes[] = {{{_listed(delegate_checks._FILTER_SIZES)}}};",
            "/// Bits of an element, by the number of its XNNDatatype; 0 for none.",
            f"inline constexpr uint8_t kXnnBits[] = {{{_listed(_bits())}}};",
            f'inline constexpr char kXnnpack[] = "{xnn_blob.BACKEND_ID}", kView[] = "{VIEW}";',
            "",
            "} // namespace dimorder::tables",
            "",
        ]
    )


def _constants() -> Iterable[str]:
    for table, fields in program_tables._FIELDS.items():
        if fields:
            listed = ", ".join(f"k{table}{_camel(name)} = {at}" for name, (at, _) in fields.items())
            yield f"enum : int {{ {listed} }};"
    for module, names in _DELEGATE_FIELDS.items():
        listed = ", ".join(f"kXnn{_camel(name)} = {getattr(module, name)}" for name in names)
        yield f"enum : int {{ {listed} }};"


def _enumeration(name: str, members: Iterable[str], *, flags: bool = False) -> list[str]:
    listed = ", ".join(
        f"k{_camel(each)} = {1 << number if flags else number}" for number, each in enumerate(members)
    )
    return [f"enum class {name} : uint8_t {{ {listed} }};"]


def _camel(name: str) -> str:
    """
    >>> _camel("_GRAPH_NODES"), _camel("instr_args"), _camel("IntList")
    ('GraphNodes', 'InstrArgs', 'IntList')
    """
    return "".join(
        part[:1].upper() + (part[1:].lower() if part.isupper() else part[1:]) for part in name.split("_")
    )


def _schemas() -> Iterable[tuple[str, str]]:
    """Yield the kernels of ExecuTorch's wheel that have a schema, and the letters of their arguments."""
    import executorch.exir
    import executorch.kernels.quantized  # noqa: F401  (it registers kernels, and the one before schemas)
    from executorch.extension.pybindings import _C

    for kernel in sorted(_C._get_operator_names()):
        schema, result = argument_checks._schema_of(kernel), "=" * argument_checks.gives_number(kernel)
        if schema is not None:
            divisors = argument_checks.divisors_of(schema)
            yield kernel, "".join(_letter(each, each.name in divisors) for each in schema.arguments) + result
        elif result:
            yield kernel, result


def _letter(argument: object, divides: bool) -> str:
    of = str(argument.type)  # type: ignore[attr-defined]
    inner = of.removeprefix("Optional[")
    name, optional = (of, "") if inner == of else (inner[:-1], "?")
    assert argument_checks._kinds(of) == argument_checks._KINDS[name] + (("Null",) if optional else ())
    return _LETTERS[name] + optional + ("/" if divides else "")


def _wrong() -> Iterable[tuple[str, str]]:
    for kernel, found in sorted(KernelTable.shipped().rows["portable"].items()):
        if kernel != VIEW:  # of which the loader knows a rule, as `KernelTable.verdict_of` does
            yield from ((kernel, key) for key in sorted(found) if found[key] == "wrong")


def _node(kind: str) -> str:
    operands, result = delegate_orders._FIELDS[kind]
    names = [(module, name) for module, names in _TRAITS.items() for name in names]
    traits = sum((kind in getattr(module, name)) << bit for bit, (module, name) in enumerate(names))
    return f'{{"{kind}", {len(operands)}, {{{_listed(operands)}}}, {result}, {traits}}}'


def _bits() -> list[int]:
    return [xnn_blob._BITS.get(number, 0) for number in range(max(xnn_blob._BITS) + 1)]


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def _quoted(words: Iterable[str]) -> str:
    return ", ".join(f'"{word}"' for word in words)


if __name__ == "__main__":
    Path(PATH).write_text(native_tables())
