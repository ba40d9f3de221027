"""Operators on small matrices that LiteRT computes in parts: those of `dimorder.ops.parts_linalg`."""

from __future__ import annotations

import torch

from tests.targets.cases import Case, aten, r

SQUARE = r(2, 4, 4)
POSITIVE = SQUARE @ SQUARE.mT + torch.eye(4)
FACTOR = torch.linalg.cholesky(POSITIVE)
RIGHT = r(2, 4, 3)
TALL, WIDE = r(2, 6, 4), r(2, 3, 5)
PACKED, PIVOTS = torch.linalg.lu_factor(SQUARE)
VECTORS, TAUS = torch.geqrf(TALL)
SINGULAR = torch.tensor([[1.0, 2, 4], [2, 4, 8], [0, 1, 0]])  # whose factors are exact

CASES: dict[str, Case] = {
    "in parts: triangles": (
        lambda a, b: (
            torch.linalg.solve_triangular(a, b, upper=True),
            torch.linalg.solve_triangular(a, b.mT, upper=False, left=False, unitriangular=True),
            *torch.triangular_solve(b, a, True, True),
            torch.triangular_solve(b[0, :, :1], a, False, False, True)[0],
        ),
        (SQUARE + 4 * torch.eye(4), RIGHT),
        (),
    ),
    "in parts: Cholesky's factor": (
        lambda a, f, b: (
            torch.linalg.cholesky(a),
            torch.linalg.cholesky(a, upper=True),
            torch.cholesky(a),
            torch.cholesky_solve(b, f),
            torch.cholesky_solve(b, f.mT, True),
            torch.cholesky_inverse(f),
        ),
        (POSITIVE, FACTOR, RIGHT),
        (),
    ),
    "in parts: factors with pivots": (
        lambda a, tall, wide: (
            *torch.linalg.lu(a),
            *torch.linalg.lu_factor_ex(tall),
            *torch.linalg.lu(wide),
        ),
        (SQUARE, TALL, WIDE),
        (),
    ),
    "in parts: given factors": (
        lambda f, p, b: (
            *torch.lu_unpack(f, p),
            *(torch.linalg.lu_solve(f, p, b, adjoint=adjoint) for adjoint in (False, True)),
            torch.linalg.lu_solve(f, p, b.mT, left=False),
        ),
        (PACKED, PIVOTS, RIGHT),
        (),
    ),
    "in parts: solutions": (
        lambda a, b: (
            torch.linalg.solve(a, b),
            torch.linalg.solve(a, b[:, :, 0]),
            torch.linalg.inv(a),
            torch.linalg.matrix_power(a, -2),
            torch.det(a),
            *torch.linalg.slogdet(a),
        ),
        (SQUARE + 2 * torch.eye(4), RIGHT),
        (),
    ),
    "in parts: a matrix without an inverse": (
        lambda a: (torch.det(a), *torch.linalg.slogdet(a), torch.linalg.lu_factor_ex(a)[2]),
        (SINGULAR,),
        (),
    ),
    "in parts: reflections": (
        lambda a, v, t, b: (
            *torch.geqrf(a),
            *torch.linalg.qr(a),
            *torch.linalg.qr(a, "complete"),
            torch.linalg.qr(a.mT, "r")[1],
            torch.linalg.householder_product(v, t),
            *(torch.ormqr(v, t, b, transpose=turned) for turned in (False, True)),
            torch.ormqr(v, t, b.mT, left=False),
        ),
        (TALL, VECTORS, TAUS, r(2, 6, 3)),
        (),
    ),
    "in parts: the exponential of a matrix": (
        lambda a: (torch.matrix_exp(a), torch.matrix_exp(a * 9), torch.matrix_exp(a - a)),
        (SQUARE,),
        (),
    ),
    "in parts: singular values": (
        lambda a, b: (
            torch.linalg.svdvals(a),
            torch.linalg.cond(b),
            torch.linalg.matrix_rank(b @ torch.diag(torch.tensor([1.0, 1, 0, 1]))),
            torch.linalg.pinv(a),
            torch.linalg.pinv(a[..., :2] @ a[..., :3, :2].mT),
            torch.linalg.pinv(b + b.mT, atol=0.5, hermitian=True),
        ),
        (TALL[0, :, :3], SQUARE),
        (),
    ),
    "in parts: eigenvalues of symmetric matrices": (
        lambda a: (
            torch.linalg.eigvalsh(a),
            torch.linalg.eigvalsh(a[0, :3, :3], "U"),
            torch.linalg.matrix_rank(a[..., :1] @ a[..., :1].mT, hermitian=True),
        ),
        (SQUARE,),
        (),
    ),
    "in parts: norms of a matrix": (
        lambda a: (
            *(torch.linalg.norm(a[0], order) for order in (1, -1, torch.inf, -torch.inf)),
            *(aten.linalg_norm.ord_str(a, order, [1, 2]) for order in ("fro", "nuc")),
        ),
        (TALL,),
        (),
    ),
}
