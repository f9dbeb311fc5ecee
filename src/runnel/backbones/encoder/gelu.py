"""GELU, x Phi(x) with Phi the normal distribution, for arrays; the kernels use the same numbers.

Phi(x) is 1/2 + erf(x / sqrt 2) / 2. Up to |x| = END the second term is computed as x P(x^2) /
Q(x^2), with an error of at most 7.7e-9; beyond END it is taken as 1/2 or -1/2, from which it
differs by less than 2e-8. P and Q were fitted by reweighted least squares in fp64. With the
rounding of fp32, the error of GELU is at most 2e-7 where |x| <= 1, and at most 2e-7 |x| elsewhere.
"""

import numpy as np
from numpy.typing import NDArray

END = 5.5
# Coefficients, highest powers first.
P = (
    2.282993395499275e-08,
    6.3268574862180675e-06,
    1.667907649267483e-4,
    4.664966695949949e-3,
    3.366523478850658e-2,
    0.39894225854283266,
)
Q = (
    1.1979583582935856e-06,
    7.29323578524655e-05,
    1.8730919496306097e-3,
    2.8536430754691915e-2,
    0.25105241647376714,
    1.0,
)


def gelu(x: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return GELU of each number, in the dtype of x; exactly 0 or x beyond `END`."""
    inside = np.clip(x, -END, END)
    square = inside * inside
    above = np.zeros_like(square)  # P, by Horner's rule
    below = np.zeros_like(square)  # Q
    for p, q in zip(P, Q, strict=True):
        above = above * square + x.dtype.type(p)
        below = below * square + x.dtype.type(q)
    half = inside * above / below
    # beyond END Phi is 1 or 0, which is what `x > 0` becomes
    return x * np.where(abs(x) < END, half + x.dtype.type(0.5), x > 0)
