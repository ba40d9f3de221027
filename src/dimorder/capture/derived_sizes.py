"""Tell torch.export before it traces a network which dynamic sizes are multiples of others.

torch 2.13 learns after the trace that a size is `32 * Dim("h")`. So a network's quotients and remainders of
that size stay in its sizes, although most of them are whole or zero. Each proof about sizes takes longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import sympy


@contextmanager
def derived_sizes_first() -> Iterator[None]:
    """Let each size of the inputs that is computed from another one be so from the beginning.

    >>> import torch
    >>> from torch.export import Dim, export
    >>> sizes = ({0: 8 * Dim("n", min=1, max=8)},)
    >>> with derived_sizes_first():
    ...     program = export(torch.nn.Unflatten(0, (-1, 4)), (torch.ones(16),), dynamic_shapes=sizes)
    >>> print(*(node.meta["val"].shape[0].node.expr.args[0] for node in program.graph.nodes if node.meta))
    8 2
    """
    from torch.export import _trace

    original: Callable[..., Any] = vars(_trace)["make_fake_inputs"]

    def make(*args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        environment, equalities = made[0].shape_env, made[3]
        for source, root, derive in equalities.derived_equalities:
            of = root if isinstance(root, sympy.Basic) else environment.source_to_var[root.name]
            equal = sympy.Eq(environment.source_to_var[source.name], derive(of))
            environment.evaluate_expr(equal)  # as torch does after the trace
        return made

    with patch.object(_trace, "make_fake_inputs", make):
        yield
