"""Laws: properties of each op beyond single points of its formula, which kernels are tested for
(reference.op.Law)."""
