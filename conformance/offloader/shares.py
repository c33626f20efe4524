"""A step that reads: thread 0 posts, every thread waits and looks at what came."""

from kernels.cpu.reading import post, wait
from kernels.cpu.share import arguments, share

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
