"""Steps that read: thread 0 posts, every thread waits."""

from kernels.cpu.isa.atomics import atomic_load, pause
from kernels.cpu.runtime.reading import post, wait
from kernels.cpu.runtime.share import arguments, share

STREAM = (
    "readers: u64, requests: i64[requests request], places: i64[requests], "
    "wanted: i64[counters], truth: u8[size], memory: u8[room] "
    "-> passed: i64[threads counters], wrong: i64[threads]"
)


@share(STREAM)
def stream(block, thread, n_threads):
    """Post all requests; wait for each counter, every thread beginning with another one, and count
    bytes that are not the file's (truth) in what it stands for."""
    readers, requests, places, wanted, truth, memory, passed, wrong = arguments(block, STREAM)
    if thread == 0:
        for r in requests:
            if not post(readers, r[0], r[1], r[2], r[3], r[4], r[5]):
                break
    for i in range(len(wanted)):
        counter = (i + thread) % len(wanted)
        if not wait(readers, counter, wanted[counter], thread):
            return
        passed[thread, counter] += 1
        for k in range(len(requests)):
            if requests[k, 5] == counter:
                for j in range(requests[k, 4]):
                    if memory[places[k] + j] != truth[requests[k, 1] + j]:
                        wrong[thread] += 1


PING = (
    "readers: u64, request: i64[request], rounds: i64, chance: u64[threads lines], "
    "buffer: i64[one] -> passed: i64[threads]"
)
LOOKS, PAUSES = 2000, 16


@share(PING)
def ping(block, thread, n_threads):
    """Post one request and wait for it, so many times. Threads come to the wait just after the
    bytes are there, which is when the counter comes too, before or after them as chance has it."""
    readers, r, rounds, chance, buffer, passed = arguments(block, PING)
    for i in range(rounds):
        if thread == 0:
            buffer[0] = 0
            if not post(readers, r[0], r[1], r[2], r[3], r[4], r[5]):
                return
        looks = LOOKS
        while atomic_load(buffer, 0) == 0 and looks > 0:
            looks -= 1
            pause()
        state = chance[thread, 0]  # Marsaglia's xorshift
        state ^= state << 13
        state ^= state >> 7
        state ^= state << 17
        chance[thread, 0] = state
        for _ in range((state >> 20) % PAUSES):
            pause()
        if not wait(readers, r[5], i + 1, thread):
            return
        passed[thread] += 1
