"""Planted bugs of typical."""

from conformance.bugs.bug import in_python
from reference.samplers.top_p import top_p

BUGS = in_python("typical", top_p)
