"""accept, recover, exclude and pick on the CPU: rows of float64, each by one thread."""

import numpy as np

from kernels.cpu.isa.sweep import each_row
from kernels.cpu.runtime.closures import inner
from reference.verification import OPS

ACCEPT, RECOVER, EXCLUDE, PICK = (op.signature for op in OPS)
CHUNK = 64  # probabilities that pick skips at once


@each_row(ACCEPT)
def accept(n, p, q, tokens, u, accepted):
    drafted = q[n, tokens[n]]
    accepted[n] = drafted > 0 and u[n] * drafted < p[n, tokens[n]]


@inner
def mass_of(row, first, last):
    """The sum of row[first:last] in four independent chains."""
    a, b, c, d = 0.0, 0.0, 0.0, 0.0
    whole = first + (last - first) // 4 * 4
    for i in range(first, whole, 4):
        a += row[i]
        b += row[i + 1]
        c += row[i + 2]
        d += row[i + 3]
    for i in range(whole, last):
        a += row[i]
    return (a + b) + (c + d)


@inner
def normalise(row, mass):
    for i in range(row.size):
        row[i] /= mass


@each_row(RECOVER)
def recover(n, p, q, tokens, out):
    for i in range(p.shape[1]):
        out[n, i] = max(0.0, p[n, i] - q[n, i])
    mass = mass_of(out[n], 0, p.shape[1])
    if mass > 0 and q[n, tokens[n]] > 0:
        normalise(out[n], mass)
    else:
        for i in range(p.shape[1]):
            out[n, i] = p[n, i]


@each_row(EXCLUDE)
def exclude(n, p, tokens, out):
    for i in range(p.shape[1]):
        out[n, i] = p[n, i]
    out[n, tokens[n]] = 0.0
    mass = mass_of(out[n], 0, p.shape[1])
    if mass > 0:
        normalise(out[n], mass)


@inner
def token_at(row, first, last, mass, target):
    """The token of row[first:last] at which the running sum passes target; the last nonzero one if
    rounding hides it."""
    at = first
    for i in range(first, last):
        if row[i] > 0:
            at = i
            mass += row[i]
            if mass > target:
                break
    return at


@each_row(PICK)
def pick(n, p, u, tokens):
    """Sums of chunks, then token by token within the chunk that passes u."""
    vocab = p.shape[1]
    row, whole = p[n], 0.0
    for i in range(0, vocab, CHUNK):
        whole += mass_of(row, i, min(i + CHUNK, vocab))
    target = min(
        u[n] * whole, np.nextafter(whole, 0.0)
    )  # the product may round up to the whole sum
    mass = 0.0
    for i in range(0, vocab, CHUNK):
        end = min(i + CHUNK, vocab)
        after = mass + mass_of(row, i, end)
        if after > target:
            tokens[n] = token_at(row, i, end, mass, target)
            break
        mass = after
