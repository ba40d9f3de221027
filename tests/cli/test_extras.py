"""Test that what a missing package stops says in one line how to install it, for commands and in Python."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator

import numpy as np
import pytest
import torch

import dimorder
from tests.conftest import ROOT

# Package → the extra, or the package, that the error names.
EXECUTORCH = "'.[executorch]'"
EXTRAS = {
    "executorch": EXECUTORCH,
    "torchao": EXECUTORCH,
    "flatbuffers": EXECUTORCH,
    "ai_edge_litert": "'.[litert]'",
    "tosa": "'.[tosa]'",
    "tosa_serializer": "'.[tosa]'",
    "tosa_reference_model": "'.[tosa]'",
    "ml_dtypes": "'.[tosa]'",
    "ethosu": "'.[executorch,tosa]'",
    "PIL": "pillow",
    "skimage": "'.[executorch,demo]'",
    "matplotlib": "'.[peers]'",
    "onnxruntime": "'.[peers]'",
    "openvino": "'.[peers]'",
    "litert_torch": "litert-torch ai-edge-litert",
    "argcomplete": "'.[completion]'",
    "model_explorer": "",  # which imports us
}
ALWAYS = {"torch", "numpy", "scipy", "sympy", "dimorder", *sys.stdlib_module_names}  # sympy comes with torch
NOT_PACKAGES = {"__future__", "_typeshed", "typing_extensions"}


def imported(source: str) -> Iterator[str]:
    """Yield the packages that a module imports, anywhere in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield str(node.module).split(".")[0]


def test_every_optional_import_of_the_package_is_listed_here():
    files = (ROOT / "src" / "dimorder").rglob("*.py")
    found = {name for file in files for name in imported(file.read_text())}
    assert found - ALWAYS - NOT_PACKAGES == EXTRAS.keys()


# Runs each case in one process in which packages are missing, and writes what was said.
SCRIPT = """
import contextlib, importlib.machinery, io, json, sys
missing, cases = json.load(sys.stdin)
find = importlib.machinery.PathFinder.find_spec
importlib.machinery.PathFinder.find_spec = staticmethod(
    lambda name, path=None, target=None: None if name.split(".")[0] in missing else find(name, path, target)
)
from dimorder.cli import main
import dimorder, dimorder.executorch, os, torch

def said(case):
    if isinstance(case, str):
        try:
            eval(case)
        except dimorder.DimorderError as error:
            return 1, str(error)
        return 0, ""
    err = os.dup(2)
    with open("err", "w+") as file:
        os.dup2(file.fileno(), 2)
        code = main(case)
        os.dup2(err, 2)
        file.seek(0)
        return code, file.read()

print(json.dumps([said(case) for case in cases]), file=open("said", "w"))
"""


def run_without(missing: Iterable[str], cases: list[str | list[str]], folder) -> list[tuple[int, str]]:
    """Return the exit code and the errors of each command or expression, if packages are not installed."""
    paths = [str(ROOT / "src"), str(ROOT)]
    subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps([list(missing), cases]),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        text=True,
        check=True,
        capture_output=True,
    )
    return [tuple(each) for each in json.loads((folder / "said").read_text())]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a network, files of each target, inputs and a picture."""
    from PIL import Image

    made, x = tmp_path_factory.mktemp("extras"), torch.randn(1, 3, 8, 9)
    conv = torch.nn.Conv2d(3, 8, 3).eval()
    torch.export.save(torch.export.export(conv, (x,)), made / "net.pt2")
    for target, suffix in (("xnnpack", "pte"), ("litert", "tflite"), ("tosa", "tosa"), ("torch", "pt2")):
        dimorder.lower(conv, (x,), target=target, run_artifact=False).save(made / f"lowered.{suffix}")
    (made / "pictures").mkdir()
    Image.new("RGB", (9, 8)).save(made / "pictures" / "a.png")
    torch.save(x, made / "x.pt")
    np.save(made / "x.npy", x.numpy())
    return made


QUANTIZED = ["--quantize", "int8", "--calibrate", "x.npy"]
BENCH = ["bench", "torch.nn:ReLU", "--input", "2x3x5x7", "--target", "torch", "--rounds", "5"]
CONV = "(torch.nn.Conv2d(3, 8, 3), (torch.ones(1, 3, 8, 9),)"

# Nothing but what `pip install .` brings.
WITHOUT_EXTRAS: list[tuple[str | list[str], str]] = [
    (["lower", "net.pt2", "-o", "new.pte"], "executorch"),
    (["lower", "net.pt2", "-o", "new.tflite"], "ai_edge_litert"),
    (["lower", "net.pt2", "-o", "new.tosa"], "tosa_serializer"),
    (["lower", "net.pt2", "-o", "new.pte", *QUANTIZED], "torchao"),
    (["lower", "net.pt2", "-o", "new.tflite", *QUANTIZED], "torchao"),
    (["lower", "net.pt2", "-o", "new.pte", "--target", "ethos-u85-256", *QUANTIZED], "ethosu"),
    (["plan", "net.pt2", "--target", "xnnpack", "--compare-with", "executorch"], "executorch"),
    (["check", "lowered.pte"], "flatbuffers"),
    (["check", "lowered.tflite"], "ai_edge_litert"),
    (["check", "lowered.tosa"], "tosa"),
    (["check", "net.pt2"], "executorch"),
    (["run", "lowered.pte", "--input", "x.npy"], "executorch"),
    (["run", "lowered.tflite", "--input", "x.npy"], "ai_edge_litert"),
    (["run", "lowered.tosa", "--input", "x.npy"], "tosa"),
    (["run", "lowered.pt2", "--input", "pictures/a.png"], "PIL"),
    (["export-runner", "lowered.pte", "-o", "project"], "executorch"),
    (["ops", "--runtime", "executorch", "--regenerate"], "executorch"),
    (["bench", "ops"], "executorch"),
    (["bench", "torch.nn:ReLU", "--input", "2x3x5x7", "--against", "eager"], "executorch"),
    ([*BENCH, "--against", "executorch"], "executorch"),
    ([*BENCH, "--against", "onnxruntime"], "onnxruntime"),
    ([*BENCH, "--against", "openvino"], "openvino"),
    ([*BENCH, "--against", "litert-torch"], "litert_torch"),
    ([*BENCH, "--against", "eager", "--chart", "chart.png"], "matplotlib"),
    (["demo"], "skimage"),
    (f"dimorder.lower{CONV}, target='xnnpack')", "executorch"),
    (f"dimorder.lower{CONV}, target='litert')", "ai_edge_litert"),
    (f"dimorder.lower{CONV}, target='tosa')", "tosa"),
    ("dimorder.load('lowered.pte')", "executorch"),
    ("dimorder.load('lowered.tflite')", "ai_edge_litert"),
    ("dimorder.load('lowered.tosa')(torch.load('x.pt'))", "tosa_reference_model"),
    ("dimorder.quantize(torch.nn.Conv2d(3, 8, 3), [torch.load('x.pt')])", "torchao"),
    *((f"dimorder.executorch.{name}", "executorch") for name in ("guarded", "check_file", "probe")),
]


@pytest.fixture(scope="module")
def said(folder):
    return run_without(EXTRAS, [case for case, _ in WITHOUT_EXTRAS], folder)


@pytest.mark.parametrize("index", range(len(WITHOUT_EXTRAS)), ids=lambda index: str(WITHOUT_EXTRAS[index][0]))
def test_a_missing_package_is_named_with_the_command_that_installs_it(said, index):
    (case, package), (code, error) = WITHOUT_EXTRAS[index], said[index]
    lines = error.splitlines()
    assert code == 1 and len(lines) == 3, (case, code, error)
    assert f"pip install {EXTRAS[package]}" in lines[2] and lines[2].startswith("  fix: "), (case, error)


def test_executorch_is_named_too_if_all_other_packages_are_there(folder):
    cases = [case for case, package in WITHOUT_EXTRAS if package == "executorch" and isinstance(case, list)]
    for case, (code, error) in zip(cases, run_without(["executorch"], cases, folder), strict=True):
        assert code == 1 and f"pip install {EXECUTORCH}" in error.splitlines()[-1], (case, error)
