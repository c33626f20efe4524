"""accept, recover, exclude and pick on the CPU: rows of float64, whole rows to a thread."""

import numpy as np

from kernels.cpu.runtime.closures import inner
from kernels.cpu.runtime.share import arguments, part, share
from reference.verification import OPS

ACCEPT, RECOVER, EXCLUDE, PICK = (op.signature for op in OPS)
CHUNK = 64  # probabilities that pick skips at once


@share(ACCEPT)
def accept(block, thread, n_threads):
    p, q, tokens, u, accepted = arguments(block, ACCEPT)
    first, last = part(tokens.size, thread, n_threads)
    for n in range(first, last):
        drafted = q[n, tokens[n]]
        accepted[n] = drafted > 0 and u[n] * drafted < p[n, tokens[n]]


@inner
def mass_of(row, first, last):
    """The sum of row[first:last], four at a time, so that no addition waits for the one before."""
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


@share(RECOVER)
def recover(block, thread, n_threads):
    p, q, tokens, out = arguments(block, RECOVER)
    first, last = part(tokens.size, thread, n_threads)
    for n in range(first, last):
        for i in range(p.shape[1]):
            out[n, i] = max(0.0, p[n, i] - q[n, i])
        mass = mass_of(out[n], 0, p.shape[1])
        if mass > 0 and q[n, tokens[n]] > 0:
            normalise(out[n], mass)
        else:
            for i in range(p.shape[1]):
                out[n, i] = p[n, i]


@share(EXCLUDE)
def exclude(block, thread, n_threads):
    p, tokens, out = arguments(block, EXCLUDE)
    first, last = part(tokens.size, thread, n_threads)
    for n in range(first, last):
        for i in range(p.shape[1]):
            out[n, i] = p[n, i]
        out[n, tokens[n]] = 0.0
        mass = mass_of(out[n], 0, p.shape[1])
        if mass > 0:
            normalise(out[n], mass)


@inner
def token_at(row, first, last, mass, target):
    """The token of row[first:last] at which mass passes target; the last one that has any if
    rounding hides it."""
    at = first
    for i in range(first, last):
        if row[i] > 0:
            at = i
            mass += row[i]
            if mass > target:
                break
    return at


@share(PICK)
def pick(block, thread, n_threads):
    """Sums of chunks, then the same again until they would pass u, then token by token."""
    p, u, tokens = arguments(block, PICK)
    first, last = part(u.size, thread, n_threads)
    vocab = p.shape[1]
    for n in range(first, last):
        row, whole = p[n], 0.0
        for i in range(0, vocab, CHUNK):
            whole += mass_of(row, i, min(i + CHUNK, vocab))
        target = min(u[n] * whole, np.nextafter(whole, 0.0))  # the product may round up to whole
        mass = 0.0
        for i in range(0, vocab, CHUNK):
            end = min(i + CHUNK, vocab)
            after = mass + mass_of(row, i, end)
            if after > target:
                tokens[n] = token_at(row, i, end, mass, target)
                break
            mass = after
