"""Placement of a sparse model's neurons on the GPU.

The room, in reading order:

- `statistics`: how often each neuron was active, in PowerInfer's files or ours
- `budget`: the parts that come first, and the bytes left for neurons
- `solver`: how many neurons of each layer save most
- `gpu_index`: the file beside the model that stores the placement, in PowerInfer's format
- `place`: all of this together
- `applied`: a placement applied while a model is loaded

>>> with GGUFFile("model.powerinfer.gguf") as model:
...     find(model, statistics.read(Path("activation")), budget_bytes(4)).placement.needed
3221225472
"""

from engine.placement.budget import PlacementError, budget_bytes
from engine.placement.place import Found, Placement, Speeds, find, place
from engine.placement.statistics import Activations, StatisticsError

__all__ = [
    "Activations", "Found", "Placement", "PlacementError", "Speeds", "StatisticsError",
    "budget_bytes", "find", "place",
]  # fmt: skip
