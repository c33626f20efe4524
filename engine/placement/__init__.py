"""Which neurons of a sparse model go to the GPU.

The room, in reading order:

- `statistics`: how often each neuron was active, in PowerInfer's files or ours
- `budget`: what comes first, and what it leaves for neurons
- `solver`: how many neurons of each layer then save most
- `gpu_index`: the file beside the model that keeps the answer, in PowerInfer's format
- `place`: the parts put together
- `applied`: the answer taken up by a model that is being loaded

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
