"""Work on many machines of an existing Dask cluster: jobs, their shares on workers, and results
(docs/guide/fleet.md).

- `about`: a worker's description of itself, and reasons to refuse one.
- `worker`: code on a worker around every share; results with a digest.
- `files`: files by a shared path, or sent once by digest.
- `cluster`: Dask's scheduler and workers.
- `distribution`: shares in flight, workers that arrive and leave.
- `shares`: work on texts and prompts, and per-machine work; `suite`: the tests.
- `matrix`: which kernel is certified where; `simulation`: a simulated fleet.
"""
