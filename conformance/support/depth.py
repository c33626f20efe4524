"""How deep tests look."""

import os

DEEP = bool(os.environ.get("ASSAY_DEEP"))
