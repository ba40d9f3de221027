"""List the operators of random networks that compute Fourier transforms, or complex numbers in between."""

from __future__ import annotations

from tests.fuzz.rows import Draw, Drawn, Operator, along, binary, plain


def _filtered(d: Draw) -> Drawn:
    dim = d.dim()
    return [d.x], {"dim": dim, "size": d.shape[dim]}


FOURIER = {
    "rfft_abs": along("torch.fft.rfft({0}, dim={dim}).abs()"),
    "rfft_scaled": along("torch.fft.rfft({0}, dim={dim}, norm={norm!r}).real", norm=["ortho", "forward"]),
    "rfft_pairs": along("torch.view_as_real(torch.fft.rfft({0}, dim={dim}))"),
    "fft_part": along("torch.fft.fft({0}, dim={dim}).{part}", part=["real", "imag"]),
    "ifft_part": along("torch.fft.ifft({0} * (0.6 - 0.8j), dim={dim}).{part}", part=["real", "imag"]),
    "hfft": along("torch.fft.hfft({0} * (1 + 0.5j), dim={dim})"),
    "fft2_abs": plain("torch.fft.fft2({0}).abs()", range(2, 6)),
    "rfft2_power": plain("torch.fft.rfft2({0}, norm='ortho').abs().square()", range(2, 6)),
    "fft_shifted": along("torch.fft.fftshift(torch.fft.fft({0}, dim={dim}), dim={dim}).real"),
    "filtered": Operator(
        "torch.fft.irfft(torch.fft.rfft({0}, dim={dim}) * (0.7 + 0.4j), n={size}, dim={dim})", _filtered
    ),
    "fft_there_and_back": along(
        "torch.fft.ifft(torch.fft.fft({0}, dim={dim}) * (0.6 - 0.3j), dim={dim}).{part}",
        part=["real", "imag"],
    ),
    "stft_abs": plain(
        "torch.stft({0}, 4, 2, window=torch.hann_window(4), return_complex=True).abs()", range(1, 3)
    ),
    "complex_product": binary(
        "(torch.complex({0} * 1.0, {0} + {1}) * torch.complex({0} - {1}, {0} * 0.5)).imag"
    ),
    # XNNPACK's sine is wrong beyond 1e9, which a product may reach.
    "complex_power": plain("(torch.exp(1j * {0}.clamp(-1e6, 1e6)) * {0}).{part}", part=["real", "imag"]),
    "complex_conjugate": along("(torch.fft.rfft({0}, dim={dim}).conj() * (0.3 + 1j)).imag"),
    "complex_moved": along("torch.fft.rfft({0}, dim={dim}).flip({dim}).transpose(0, -1).imag"),
    "complex_sum": along("torch.fft.rfft({0}, dim={dim}).sum({dim}).abs()"),
}
