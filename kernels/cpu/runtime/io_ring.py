"""Compiled code of the readers of files, and of threads that wait for the bytes.

One thread posts requests into a ring. Its readers sleep until there is one, read, and advance its
counter; threads that need the bytes wait for it. Nobody spins, and no Python runs. After a fault or
an interrupt nothing more is read and every wait returns, until `IOPool.reset`.

A share takes the readers as one word, `readers: u64`, which is `IOPool.address`, and calls `post`,
`wait` and `clear`. In this file a counter is its index in `counts`; callers' begin at CALLERS.
"""

import errno

import numpy as np

from kernels.cpu.isa.atomics import (
    atomic_add,
    atomic_load,
    compare_and_swap,
    put_word,
    word_at,
    yield_core,
)
from kernels.cpu.isa.system_calls import (
    call_preadv,
    drop_cached,
    last_error,
    nanoseconds,
    sem_post,
    sem_wait,
)
from kernels.cpu.runtime.closures import inner
from kernels.cpu.runtime.share import arguments, share

SIGNATURE = (
    "control: i64[words], counts: i32[counts], requests: i64[capacity request], "
    "files: i64[files file], waiting: i64[threads], semaphores: u8[bytes] -> "
)

# words of `control`, those that change together on a cache line of their own
POSTED = 0
STOPPED, PREADV, PATIENT = 8, 9, 10
IN_FLIGHT, BUSY, READS, BYTES = 16, 17, 18, 19
FAULTY, CODE, FILE, OFFSET = 24, 25, 26, 27
WORDS = 32

RUNNING, FAULT, INTERRUPTED, EMPTIED = 0, 1, 2, 3  # values of STOPPED

# `counts`: requests taken out of the ring, requests that are over, Python's reads, then callers'
TAKEN, OVER, OWN, CALLERS = 0, 1, 2, 3

REQUEST = 6  # words: file, offset, address of iovecs, how many they are, bytes, counter
FD, ALIGNMENT, DROPPED = 0, 1, 2  # words of a file
FILE_WORDS = 3

SEMAPHORE = 64  # stride in bytes, a cache line: the readers' first, then each thread's
WORK, THREADS = 0, SEMAPHORE

NOBODY = 0  # waits, in `waiting`
CUT_SHORT = -1  # a fault without an errno
DONE, GIVEN_UP = 0, -2
TRIES = 3
MOST_IOVECS = 1024  # that a call takes (IOV_MAX)
PAGE = 4096
EINTR, EAGAIN, EIO = errno.EINTR, errno.EAGAIN, errno.EIO


@inner
def is_reached(count, wanted):
    """Whether a count has reached the wanted one; both wrap at 32 bits."""
    return np.int32(count - wanted) >= 0


@inner
def wake_thread(readers, thread, word):
    """Wake a thread that waits on this word, unless it was woken already."""
    _, _, _, _, waiting, semaphores = arguments(readers, SIGNATURE)
    if compare_and_swap(waiting, thread, word, NOBODY):
        sem_post(semaphores, THREADS + SEMAPHORE * thread)


@inner
def wake(readers, counter, count):
    """Wake waiters for this counter to reach `count` or less."""
    _, _, _, _, waiting, _ = arguments(readers, SIGNATURE)
    for thread in range(len(waiting)):
        word = atomic_load(waiting, thread)
        if word >> 32 == counter + 1 and is_reached(count, word):
            wake_thread(readers, thread, word)


@inner
def advance(readers, counter):
    """Increment a counter."""
    _, counts, _, _, _, _ = arguments(readers, SIGNATURE)
    wake(readers, counter, atomic_add(counts, counter, np.int32(1)) + 1)


@inner
def stop(readers, reason):
    """Stop reading and wake all waiters; the first reason is kept."""
    control, _, _, _, waiting, _ = arguments(readers, SIGNATURE)
    compare_and_swap(control, STOPPED, RUNNING, reason)
    for thread in range(len(waiting)):
        word = atomic_load(waiting, thread)
        if word != NOBODY:
            wake_thread(readers, thread, word)


@inner
def interrupt(readers):
    """Record a signal to thread 0, which may be waited for."""
    control, _, _, _, _, _ = arguments(readers, SIGNATURE)
    if control[PATIENT] == 0:
        stop(readers, INTERRUPTED)


@inner
def sleep(readers, counter, wanted, thread, stopped):
    """Sleep until a counter may have reached its target, or STOPPED is no longer `stopped`; returns
    whether no signal came meanwhile.

    A waiter first registers and then checks the counter; whoever advances it does so first and then
    checks for waiters: one of the two sees the other. Whoever removes the registration posts,
    exactly once.
    """
    control, counts, _, _, waiting, semaphores = arguments(readers, SIGNATURE)
    word = (np.int64(counter) + 1) << 32 | np.int64(wanted) & 0xFFFFFFFF
    compare_and_swap(waiting, thread, NOBODY, word)
    leaving = is_reached(atomic_load(counts, counter), wanted)
    leaving = leaving or atomic_load(control, STOPPED) != stopped
    undisturbed = True
    while not (leaving and compare_and_swap(waiting, thread, word, NOBODY)):
        if sem_wait(semaphores, THREADS + SEMAPHORE * thread) == 0:
            break
        leaving, undisturbed = True, False
    return undisturbed


@inner
def wait_for(readers, counter, wanted, thread):
    """`wait`, for any counter."""
    control, counts, _, _, _, _ = arguments(readers, SIGNATURE)
    while atomic_load(control, STOPPED) == RUNNING:
        if is_reached(atomic_load(counts, counter), wanted):
            return True
        if not sleep(readers, counter, wanted, thread, RUNNING) and thread == 0:
            interrupt(readers)
    return False


@inner
def wait(readers, counter, wanted, thread):
    """Sleep until a counter is at `wanted` or beyond. True: everything posted with it is read.
    False after a fault or an interrupt: the step should end. Each thread of the team may wait for
    any counter. A signal ends the wait of thread 0, and so every other, unless readers are
    patient."""
    return wait_for(readers, CALLERS + counter, wanted, thread)


@inner
def clear(readers, counter):
    """Set a counter back to 0; nothing posted with it may be in flight."""
    _, counts, _, _, _, _ = arguments(readers, SIGNATURE)
    counts[CALLERS + counter] = 0


@inner
def post_for(readers, file, offset, iovecs, n_iovecs, n_bytes, counter):
    """`post`, for any counter."""
    control, counts, requests, _, _, semaphores = arguments(readers, SIGNATURE)
    posted, capacity = control[POSTED], len(requests)
    while atomic_load(control, STOPPED) == RUNNING:
        if np.int32(posted - atomic_load(counts, TAKEN)) < capacity:
            request = requests[posted & (capacity - 1)]
            request[0], request[1], request[2] = file, offset, iovecs
            request[3], request[4], request[5] = n_iovecs, n_bytes, counter
            control[POSTED] = posted + 1
            sem_post(semaphores, WORK)
            return True
        # until half of the ring is free: fewer wakes, and work for all meanwhile
        if not sleep(readers, TAKEN, posted - capacity // 2, 0, RUNNING):
            interrupt(readers)
    return False


@inner
def post(readers, file, offset, iovecs, n_iovecs, n_bytes, counter):
    """Request bytes [offset, offset + n_bytes) of a file, after which a counter advances by one.

    `file` is its index among the readers' files, `iovecs` the address of int64 [n_iovecs, 2], an
    address and a size in bytes for each of the buffers that are filled in order. They may have room
    for more, as whole sectors at a file's end require. Offset, addresses and sizes are multiples of
    the file's alignment. Buffers and iovecs must stay until the counter advances; iovecs are
    modified by partial reads.

    Only thread 0 posts. It sleeps while the ring is full. False after a fault or an interrupt, and
    nothing is posted.
    """
    return post_for(readers, file, offset, iovecs, n_iovecs, n_bytes, CALLERS + counter)


@inner
def take(readers):
    """Take the next request. The reader was let past WORK, so there is one, or else it is time to
    exit, and file is -1.

    The slot is copied before it is taken, so the poster cannot have refilled it unless another
    reader took it, and then the next one is copied.
    """
    control, counts, requests, _, _, _ = arguments(readers, SIGNATURE)
    while True:
        taken = atomic_load(counts, TAKEN)
        if np.int32(atomic_load(control, POSTED) - taken) == 0:
            return -1, 0, 0, 0, 0, 0
        r = requests[np.int64(taken) & (len(requests) - 1)]
        request = r[0], r[1], r[2], r[3], r[4], r[5]
        if compare_and_swap(counts, TAKEN, taken, np.int32(taken + 1)):
            wake(readers, TAKEN, taken + 1)
            return request


@inner
def skip(iovecs, n_bytes):
    """Consume so many bytes of iovecs; returns the number of used-up iovecs."""
    used = 0
    while True:
        size = np.int64(word_at(iovecs, 2 * used + 1))
        part = min(size, n_bytes)
        put_word(iovecs, 2 * used, np.int64(word_at(iovecs, 2 * used)) + part)
        put_word(iovecs, 2 * used + 1, size - part)
        n_bytes -= part
        if n_bytes == 0:
            return used
        used += 1


@inner
def transfer(control, fd, alignment, offset, iovecs, n_iovecs, n_bytes):
    """Read a request's bytes, in as many calls as it takes: DONE, or an errno, CUT_SHORT or
    GIVEN_UP, and the file offset."""
    end, tries = offset + n_bytes, TRIES
    while offset < end:
        if atomic_load(control, STOPPED) != RUNNING:
            return GIVEN_UP, offset
        count = min(n_iovecs, MOST_IOVECS)
        read = call_preadv(control[PREADV], fd, iovecs, count, offset)
        if read < 0:
            code = np.int64(last_error())
            if code in (EINTR, EAGAIN):
                yield_core()
                continue
            if code != EIO:
                return code, offset
        else:
            atomic_add(control, READS, 1)
            atomic_add(control, BYTES, read)
            if offset + read >= end:
                break
            whole = (offset + read) // alignment * alignment - offset
            if whole > 0:
                used = skip(iovecs, whole)
                iovecs, n_iovecs, offset = iovecs + 16 * used, n_iovecs - used, offset + whole
                continue
            code = np.int64(CUT_SHORT)
        tries -= 1
        if tries == 0:
            return code, offset
    return DONE, end


@inner
def serve_request(readers, file, offset, iovecs, n_iovecs, n_bytes, counter):
    """Serve a request, or skip it if readers have been stopped."""
    control, _, _, files, _, _ = arguments(readers, SIGNATURE)
    fd, alignment = files[file, FD], files[file, ALIGNMENT]
    # time with a read in flight: the sum of ends less the sum of beginnings, in any order
    if atomic_add(control, IN_FLIGHT, 1) == 0:
        atomic_add(control, BUSY, -nanoseconds())
    code, at = transfer(control, fd, alignment, offset, iovecs, n_iovecs, n_bytes)
    if atomic_add(control, IN_FLIGHT, -1) == 1:
        atomic_add(control, BUSY, nanoseconds())
    if code == DONE:
        if files[file, DROPPED] != 0:
            first = offset // PAGE * PAGE  # a page that is not whole would stay
            drop_cached(fd, first, (offset + n_bytes + PAGE - 1) // PAGE * PAGE - first)
        advance(readers, counter)
    elif code != GIVEN_UP and compare_and_swap(control, FAULTY, 0, 1):
        control[CODE], control[FILE], control[OFFSET] = code, file, at
        stop(readers, FAULT)
    advance(readers, OVER)


@share(SIGNATURE)
def serve(readers, thread, n_threads):
    """A reader's loop, until readers exit."""
    _, _, _, _, _, semaphores = arguments(readers, SIGNATURE)
    while True:
        while sem_wait(semaphores, WORK) != 0:
            pass  # a signal, which is for others
        file, offset, iovecs, n_iovecs, n_bytes, counter = take(readers)
        if file < 0:
            return
        serve_request(readers, file, offset, iovecs, n_iovecs, n_bytes, counter)


@share(SIGNATURE)
def leave(readers, thread, n_threads):
    """Stop reading, and end `n_threads` readers."""
    _, _, _, _, _, semaphores = arguments(readers, SIGNATURE)
    stop(readers, EMPTIED)
    for _ in range(n_threads):
        sem_post(semaphores, WORK)


@share(SIGNATURE)
def empty(readers, thread, n_threads):
    """Stop reading, and sleep until nothing is in flight, or a signal comes."""
    control, counts, _, _, _, _ = arguments(readers, SIGNATURE)
    stop(readers, EMPTIED)
    posted = control[POSTED]
    if not is_reached(atomic_load(counts, OVER), posted):
        sleep(readers, OVER, posted, thread, atomic_load(control, STOPPED))


CALL = "readers: u64, request: i64[request] -> done: i64[one]"


@share(CALL)
def post_one(args, thread, n_threads):
    """`post`, for Python."""
    readers, request, done = arguments(args, CALL)
    r = request
    done[0] = post_for(readers, r[0], r[1], r[2], r[3], r[4], r[5])


WAIT = "readers: u64, counter: i64, wanted: i64 -> done: i64[one]"


@share(WAIT)
def wait_one(args, thread, n_threads):
    """`wait`, for Python."""
    readers, counter, wanted, done = arguments(args, WAIT)
    done[0] = wait_for(readers, counter, wanted, thread)
