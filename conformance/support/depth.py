"""Whether tests run deep (ASSAY_DEEP)."""

import os

DEEP = bool(os.environ.get("ASSAY_DEEP"))
