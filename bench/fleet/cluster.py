"""A Dask cluster: connect to its scheduler, call its workers, start a local one."""

import asyncio
import logging
import signal
import socket
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributed import Client

SOON = 5.0  # seconds for a scheduler to answer, and for a worker to deliver a result
GOODBYE = 30.0  # seconds for local workers to end


class FleetError(RuntimeError):
    """A reason that stops a fleet, in one plain line."""


def reached(scheduler: str) -> "Client":
    """Connect to a scheduler. Raises `FleetError`, at once if nothing listens, and soon if it is no
    scheduler: Dask's own client would wait forever."""
    from distributed import Client, rpc
    from distributed.comm.addressing import get_address_host_port

    async def answers() -> None:
        async with asyncio.timeout(SOON), rpc(scheduler) as remote:
            await remote.identity(n_workers=0)

    silence()
    try:
        socket.create_connection(get_address_host_port(scheduler), SOON).close()
    except (OSError, ValueError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or error
        raise FleetError(f"{scheduler}: no Dask scheduler answers there: {reason}") from None
    try:
        asyncio.run(answers())
        return Client(scheduler, timeout=SOON, set_as_default=False)
    except OSError:
        raise FleetError(f"{scheduler}: who answers there is no Dask scheduler") from None


def ask(
    client: "Client",
    workers: Sequence[str],
    seconds: float,
    function: Callable[..., Any],
    *args: Any,
) -> dict[str, Any]:
    """Call each worker; returns its result, or the exception that it raises: OSError if it has
    gone, TimeoutError if it does not answer in time."""

    async def one(worker: str) -> Any:
        answer = client.run(function, *args, workers=[worker], on_error="return")
        try:
            return (await asyncio.wait_for(answer, seconds)).get(worker, OSError("it has gone"))
        except TimeoutError:
            return TimeoutError(f"it has not answered for {seconds:g} seconds")

    async def every() -> list[Any]:
        return await asyncio.gather(*map(one, workers))

    return dict(zip(workers, client.sync(every), strict=True))


@contextmanager
def local(workers: int) -> Iterator[Any]:
    """A cluster of processes on this machine, which share its cores. Ctrl-C goes to this process
    alone: workers are started with the signal blocked, and end with their parent."""
    from distributed import LocalCluster

    from kernels.cpu.runtime.cores import allowed_cores

    resource_tracker.ensure_running()  # it would let the signal through, were it started later
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    cluster = None
    try:
        try:
            cluster = LocalCluster(
                n_workers=workers,
                threads_per_worker=max(1, len(allowed_cores()) // workers),
                processes=True,
                dashboard_address="127.0.0.1:0",
                memory_limit=0,  # a model's mapped pages would count
                silence_logs=logging.CRITICAL,
            )
            silence()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        yield cluster
    finally:
        if cluster is not None:
            with suppress(Exception):
                cluster.close(timeout=GOODBYE)


def silence() -> None:
    """Silence Dask's own messages about departing workers and versions: they are reported here, in
    one line."""
    from distributed.versions import VersionMismatchWarning

    warnings.simplefilter("ignore", VersionMismatchWarning)
    for name in ("distributed", "distributed.client"):
        logging.getLogger(name).handlers[:] = [logging.NullHandler()]
