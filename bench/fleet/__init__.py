"""Many machines as one, on a Dask cluster that is there: what is asked of a fleet, what its workers
do, and what becomes of their answers (docs/guide/fleet.md).

- `about`: what a worker says of itself, and why one is refused.
- `worker`: what runs on a worker, around every share; results with a digest.
- `files`: files by a shared path, or sent once by digest.
- `cluster`: a scheduler and its workers, as Dask has them.
- `distribution`: shares in flight, workers that arrive and leave.
- `shares`: of texts and prompts; `trials`: what each machine does for itself; `suite`: tests.
- `matrix`: which kernel is proved where; `simulation`: a fleet that is made up.
"""
